#include "tools/log/flat_object.h"

#include <charconv>

namespace trainer::logs {
namespace {

class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    bool at_end() {
        skip_space();
        return at_ == text_.size();
    }

    bool take(char c) {
        skip_space();
        if (at_ == text_.size() || text_[at_] != c)
            return false;
        ++at_;
        return true;
    }

    bool take_string(std::string_view& value) {
        if (!take('"'))
            return false;
        const size_t start = at_;
        for (; at_ < text_.size() && text_[at_] != '"'; ++at_)
            if (text_[at_] == '\\')
                ++at_;
        if (at_ >= text_.size())
            return false;
        value = text_.substr(start, at_ - start);
        ++at_;
        return true;
    }

    bool take_value(FlatValue& value) {
        skip_space();
        if (at_ == text_.size())
            return false;
        const char c = text_[at_];
        if (c == '"')
            return take_string(value.text);
        if (c == '{' || c == '[')
            return skip_nested();
        if (c == '-' || (c >= '0' && c <= '9'))
            return take_number(value);
        for (const std::string_view word : {"null", "true", "false"})
            if (text_.substr(at_).starts_with(word)) {
                at_ += word.size();
                return true;
            }
        return false;
    }

  private:
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' ||
                                      text_[at_] == '\r' || text_[at_] == '\n'))
            ++at_;
    }

    bool take_number(FlatValue& value) {
        const char* const end = text_.data() + text_.size();
        const auto [after, error] = std::from_chars(text_.data() + at_, end, value.number);
        // Beyond a double's range is still a number, but none to reckon with.
        value.is_number = error == std::errc{};
        at_ = static_cast<size_t>(after - text_.data());
        return error != std::errc::invalid_argument;
    }

    bool skip_nested() {
        int depth = 0;
        std::string_view ignored;
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '"') {
                if (!take_string(ignored))
                    return false;
                continue;
            }
            ++at_;
            if (c == '{' || c == '[')
                ++depth;
            else if ((c == '}' || c == ']') && --depth == 0)
                return true;
        }
        return false;
    }

    std::string_view text_;
    size_t at_ = 0;
};

}  // namespace

bool read_flat_object(std::string_view line,
                      const std::function<void(std::string_view, const FlatValue&)>& member) {
    Scanner scanner(line);
    if (!scanner.take('{'))
        return false;
    if (scanner.take('}'))
        return scanner.at_end();
    do {
        std::string_view key;
        FlatValue value;
        if (!scanner.take_string(key) || !scanner.take(':') || !scanner.take_value(value))
            return false;
        member(key, value);
    } while (scanner.take(','));
    return scanner.take('}') && scanner.at_end();
}

}  // namespace trainer::logs
