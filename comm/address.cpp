#include "comm/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "engine/error.h"

namespace trainer {
namespace {

struct InterfaceAddress {
    std::string interface;
    std::string ip;
};

std::vector<InterfaceAddress> interface_addresses() {
    ifaddrs* first = nullptr;
    if (getifaddrs(&first) != 0)
        throw Error("cannot list this machine's network interfaces");
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);

    std::vector<InterfaceAddress> addresses;
    for (const int family : {AF_INET, AF_INET6})
        for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
            if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family)
                continue;
            char text[INET6_ADDRSTRLEN] = "";
            const void* ip = family == AF_INET
                                 ? static_cast<const void*>(
                                       &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr)
                                 : &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
            if (inet_ntop(family, ip, text, sizeof text) != nullptr)
                addresses.push_back({i->ifa_name, text});
        }
    return addresses;
}

}  // namespace

std::string Address::text() const {
    const bool brackets = host.find(':') != std::string::npos;
    return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Address parse_address(const std::string& text) {
    const auto fail = [&](const std::string& why) {
        throw UsageError("\"" + text + "\" is no address: " + why +
                         "; write HOST:PORT, e.g. node1:9000, 0.0.0.0:9000 or [::1]:9000");
    };
    Address address;
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos)
        fail("it has no port");
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
        address.host = address.host.substr(1, address.host.size() - 2);
    else if (address.host.find(':') != std::string::npos)
        fail("an IPv6 address stands in brackets");
    if (address.host.empty())
        fail("it has no host");

    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error != std::errc() || stop != end || address.port < 0 || address.port > 65535)
        fail("its port is not a number from 0 to 65535");
    return address;
}

std::vector<std::string> addresses_of_interface(const std::string& name) {
    std::vector<std::string> ips;
    std::vector<std::string> names;
    for (const InterfaceAddress& address : interface_addresses()) {
        if (address.interface == name)
            ips.push_back(address.ip);
        if (std::find(names.begin(), names.end(), address.interface) == names.end())
            names.push_back(address.interface);
    }
    if (ips.empty()) {
        std::string known;
        for (const std::string& other : names)
            known += (known.empty() ? "" : ", ") + other;
        throw UsageError("this machine has no network interface \"" + name +
                         "\" with an address; there are: " + known);
    }
    return ips;
}

bool is_loopback(const std::string& host) {
    in_addr v4{};
    in6_addr v6{};
    if (::inet_pton(AF_INET, host.c_str(), &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return host == "localhost";
}

std::string host_name() {
    char name[256] = "localhost";
    if (::gethostname(name, sizeof name - 1) != 0)
        return "localhost";
    return name;
}

bool is_local_address(const std::string& ip) {
    const auto addresses = interface_addresses();
    return ip.starts_with("127.") ||
           std::any_of(addresses.begin(), addresses.end(),
                       [&](const InterfaceAddress& address) { return address.ip == ip; });
}

}  // namespace trainer
