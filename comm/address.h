// Addresses as users write them, and what this machine's network interfaces answer to.
#pragma once

#include <string>
#include <vector>

namespace trainer {

/// HOST:PORT; an IPv6 host stands in brackets.
struct Address {
    std::string host;  ///< without brackets
    int port = 0;

    /// As it is written, e.g. "node1:9000", "[::1]:9000".
    std::string text() const;
    bool operator==(const Address&) const = default;
};

/// Throws UsageError where `text` is not HOST:PORT with a port from 0 to 65535.
Address parse_address(const std::string& text);

/// The IP addresses of the named network interface, IPv4 first. Throws UsageError, with the names
/// that there are, where this machine has no such interface or it has no address.
std::vector<std::string> addresses_of_interface(const std::string& name);

/// Whether a host as users write it is this machine to itself alone: 127.0.0.0/8, ::1, localhost.
bool is_loopback(const std::string& host);

/// What this machine calls itself; "localhost" where it cannot say.
std::string host_name();

/// Whether one of this machine's interfaces has that IP address.
bool is_local_address(const std::string& ip);

}  // namespace trainer
