// Makes C++ of a CUDA source: translate IN.cu OUT.cpp
//
// kernel<<<grid, block, shared, stream>>>(arguments) becomes a call of cuda_emulator::launch, and
// __shared__ static: blocks run one after the other. All else that nvcc knows is in device_code.h.
// Lines stay lines, so that errors and debuggers name the source.
#include <cctype>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Index behind the bracket that closes the one at `open`, both of round ones.
size_t behind_brackets(const std::string& text, size_t open) {
    int depth = 0;
    for (size_t i = open; i < text.size(); ++i) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (depth == 0)
            return i + 1;
    }
    throw std::runtime_error("a bracket stays open");
}

// Where the name before `end` starts, its template arguments included.
size_t start_of_name(const std::string& text, size_t end) {
    while (end > 0 && std::isspace(static_cast<unsigned char>(text[end - 1])))
        --end;
    if (end > 0 && text[end - 1] == '>') {
        int depth = 0;
        do {
            --end;
            depth += text[end] == '>' ? 1 : text[end] == '<' ? -1 : 0;
        } while (depth > 0 && end > 0);
    }
    const auto in_name = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':';
    };
    while (end > 0 && in_name(text[end - 1]))
        --end;
    return end;
}

// Splits at the commas outside of all brackets.
std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char c : text) {
        depth += c == '(' || c == '<' || c == '{' ? 1 : c == ')' || c == '>' || c == '}' ? -1 : 0;
        if (c == ',' && depth == 0)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
}

std::string translate(std::string text) {
    replace_all(text, "__shared__", "static");
    std::string result;
    size_t done = 0;
    for (size_t open = text.find("<<<"); open != std::string::npos; open = text.find("<<<", done)) {
        // The closing one is the last >>> before the arguments: vector_size<T>>>>(...) has four.
        size_t arguments = text.find(">>>", open);
        while (arguments != std::string::npos && text[arguments] == '>')
            ++arguments;
        if (arguments == std::string::npos || text[arguments] != '(')
            throw std::runtime_error("a launch without >>>(");
        const auto configuration = split(text.substr(open + 3, arguments - 3 - (open + 3)));
        if (configuration.size() != 4)
            throw std::runtime_error("a launch without a stream");
        const size_t end = behind_brackets(text, arguments);
        const std::string passed = text.substr(arguments + 1, end - arguments - 2);
        const size_t name = start_of_name(text, open);
        result += text.substr(done, name - done) + "::cuda_emulator::launch(" + configuration[3] +
                  ", dim3(" + configuration[0] + "), dim3(" + configuration[1] +
                  "), [](auto... emulated) { " + text.substr(name, open - name) +
                  "(emulated...); }" + (passed.empty() ? "" : ", " + passed) + ")";
        done = end;
    }
    return result + text.substr(done);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::cerr << "usage: translate IN.cu OUT.cpp\n";
        return 2;
    }
    std::ifstream in(arguments[1]);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    try {
        if (text.empty())
            throw std::runtime_error("cannot be read");
        std::ofstream out(arguments[2]);
        out << "#include \"tests/cuda_emulator/device_code.h\"\n#line 1 \"" << arguments[1]
            << "\"\n"
            << translate(text);
        if (!out.flush())
            throw std::runtime_error(std::string(arguments[2]) + " cannot be written");
    } catch (const std::runtime_error& error) {
        std::cerr << arguments[1] << ": " << error.what() << '\n';
        return 1;
    }
    return 0;
}
