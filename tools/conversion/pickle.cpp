// A pickle is a program for a machine with a stack and a memo (Python's Lib/pickletools.py
// describes every instruction). Instructions that call something make arrays of numpy's, or values
// that nothing is done with.
#include "tools/conversion/pickle.h"

#include <charconv>
#include <cstring>

#include "engine/error.h"

namespace trainer::convert {

namespace {

using Value = std::shared_ptr<PickleValue>;
using Kind = PickleValue::Kind;

Value make(Kind kind, std::string text = {}) {
    auto value = std::make_shared<PickleValue>();
    value->kind = kind;
    value->text = std::move(text);
    return value;
}

Value make_number(int64_t number) {
    Value value = make(Kind::number);
    value->number = number;
    return value;
}

class Machine {
  public:
    Machine(std::span<const std::byte> bytes, const std::string& name)
        : bytes_(bytes), name_(name) {}

    Value run() {
        while (true) {
            const auto code = static_cast<char>(take_number(1));
            if (code == '.')
                return pop();
            step(code);
        }
    }

  private:
    [[noreturn]] void fail(const std::string& what) const {
        throw Error("'" + name_ + "': no pickle of CIFAR: " + what + " at byte " +
                    std::to_string(at_));
    }

    uint64_t take_number(size_t size) {
        if (bytes_.size() - at_ < size)
            fail("it is cut short");
        uint64_t value = 0;
        for (size_t i = 0; i < size; ++i)
            value |= std::to_integer<uint64_t>(bytes_[at_ + i]) << (8 * i);
        at_ += size;
        return value;
    }

    std::string take_text(uint64_t size) {
        if (bytes_.size() - at_ < size)
            fail("it is cut short");
        std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
        at_ += size;
        return text;
    }

    std::string take_line() {
        std::string line;
        while (true) {
            const auto letter = static_cast<char>(take_number(1));
            if (letter == '\n')
                return line;
            line += letter;
        }
    }

    int64_t take_decimal() {
        const std::string line = take_line();
        const std::string digits = line.ends_with('L') ? line.substr(0, line.size() - 1) : line;
        int64_t value = 0;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc{} || end != digits.data() + digits.size())
            fail("'" + line + "' is no number");
        return value;
    }

    /// 'text' of protocol 0.
    std::string take_quoted() {
        const std::string line = take_line();
        if (line.size() < 2 || line.front() != line.back())
            fail("a text without its quotes");
        if (line.find('\\') != std::string::npos)
            fail("a text with escapes");
        return line.substr(1, line.size() - 2);
    }

    Value pop() {
        if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back()))
            fail("an instruction without its operand");
        Value value = stack_.back();
        stack_.pop_back();
        return value;
    }
    void push(Value value) { stack_.push_back(std::move(value)); }
    const Value& top() {
        if (stack_.empty())
            fail("an instruction without its operand");
        return stack_.back();
    }

    /// What lies above the last mark.
    std::vector<Value> pop_marked() {
        if (marks_.empty())
            fail("an end without its mark");
        const auto first = stack_.begin() + static_cast<int64_t>(marks_.back());
        std::vector<Value> values(first, stack_.end());
        stack_.erase(first, stack_.end());
        marks_.pop_back();
        return values;
    }

    void append(std::vector<Value> values) {
        if (top()->kind != Kind::list)
            fail("items of no list");
        for (Value& value : values)
            top()->items.push_back(std::move(value));
    }

    void set(const std::vector<Value>& values) {
        if (top()->kind != Kind::dictionary || values.size() % 2 != 0)
            fail("entries of no dictionary");
        for (size_t i = 0; i < values.size(); i += 2) {
            if (values[i]->kind != Kind::text)
                fail("a key that is no text");
            top()->entries[values[i]->text] = values[i + 1];
        }
    }

    void make_tuple(size_t size) {
        Value tuple = make(Kind::list);
        tuple->items.resize(size);
        for (size_t i = size; i-- > 0;)
            tuple->items[i] = pop();
        push(tuple);
    }

    /// A function or class; `text` is its name.
    void push_global(const std::string& module, const std::string& what) {
        push(make(Kind::other, module + "." + what));
    }

    /// Calls, which are not made, but for those whose result is known.
    void call() {
        const Value arguments = pop(), function = pop();
        Value result =
            function->text.ends_with("._reconstruct") ? make(Kind::array) : make(Kind::other);
        if (function->text == "_codecs.encode" && !arguments->items.empty())
            result = make(Kind::text, latin1(arguments->items[0]->text));
        else if (function->text.ends_with("._frombuffer"))
            result = array_of(*arguments);
        else
            result->items = arguments->items;
        push(result);
    }

    /// numpy's state of an array: version, shape, type, order, bytes.
    void build() {
        const Value state = pop();
        const Value& target = top();
        if (target->kind != Kind::array)
            return;
        if (state->items.size() != 5 || state->items[3]->number != 0 ||
            state->items[4]->kind != Kind::text)
            fail("an array of another form");
        if (!is_bytes(*state->items[2]))
            fail("an array of other numbers than bytes");
        for (const Value& extent : state->items[1]->items)
            target->shape.push_back(extent->number);
        target->text = state->items[4]->text;
    }

    /// numpy's way since protocol 5: bytes, type, shape, order.
    Value array_of(const PickleValue& arguments) {
        if (arguments.items.size() != 4 || arguments.items[3]->text != "C" ||
            !is_bytes(*arguments.items[1]))
            fail("an array of another form");
        Value array = make(Kind::array, arguments.items[0]->text);
        for (const Value& extent : arguments.items[2]->items)
            array->shape.push_back(extent->number);
        return array;
    }

    static bool is_bytes(const PickleValue& type) {
        return !type.items.empty() && (type.items[0]->text == "u1" || type.items[0]->text == "|u1");
    }

    /// Bytes that Python 3 wrote for Python 2: as text of the code points 0 to 255, in UTF-8.
    std::string latin1(const std::string& utf8) {
        std::string result;
        for (size_t i = 0; i < utf8.size(); ++i) {
            auto letter = static_cast<unsigned char>(utf8[i]);
            if (letter >= 0x80) {
                if (letter > 0xc3 || i + 1 == utf8.size())
                    fail("a text that holds no bytes");
                letter = static_cast<unsigned char>(letter << 6 | (utf8[++i] & 0x3f));
            }
            result += static_cast<char>(letter);
        }
        return result;
    }

    int64_t take_long(uint64_t size) {
        if (size > 8)
            fail("a number that is too large");
        const uint64_t raw = take_number(size);
        const auto unused = static_cast<int>(64 - 8 * size);
        return size == 0 ? 0 : static_cast<int64_t>(raw << unused) >> unused;
    }

    void step(char code) {
        if (!step_of_value(code) && !step_of_stack(code))
            fail("the instruction " + std::to_string(static_cast<unsigned char>(code)));
    }

    bool step_of_value(char code) {
        switch (code) {
            case 'N':
                push(make(Kind::none));
                return true;
            case '\x88':
            case '\x89':
                push(make_number(code == '\x88' ? 1 : 0));
                return true;
            case 'I':
            case 'L':
                push(make_number(take_decimal()));
                return true;
            case 'K':
                push(make_number(static_cast<int64_t>(take_number(1))));
                return true;
            case 'M':
                push(make_number(static_cast<int64_t>(take_number(2))));
                return true;
            case 'J':
                push(make_number(static_cast<int32_t>(take_number(4))));
                return true;
            case '\x8a':
                push(make_number(take_long(take_number(1))));
                return true;
            case 'S':
                push(make(Kind::text, take_quoted()));
                return true;
            case 'V':
                push(make(Kind::text, take_line()));
                return true;
            case 'U':
            case 'C':
            case '\x8c':
                push(make(Kind::text, take_text(take_number(1))));
                return true;
            case 'T':
            case 'B':
            case 'X':
                push(make(Kind::text, take_text(take_number(4))));
                return true;
            case '\x8d':
            case '\x8e':
            case '\x96':
                push(make(Kind::text, take_text(take_number(8))));
                return true;
            case ']':
            case ')':
                push(make(Kind::list));
                return true;
            case '}':
                push(make(Kind::dictionary));
                return true;
            case 'c': {
                const std::string module = take_line(), what = take_line();
                push_global(module, what);
                return true;
            }
        }
        return false;
    }

    bool step_of_stack(char code) {
        switch (code) {
            case '\x80':
                take_number(1);
                return true;
            case '\x95':
                take_number(8);
                return true;
            case '(':
                marks_.push_back(stack_.size());
                return true;
            case 'l':
            case 't': {
                Value list = make(Kind::list);
                list->items = pop_marked();
                push(list);
                return true;
            }
            case 'd': {
                const std::vector<Value> values = pop_marked();
                push(make(Kind::dictionary));
                set(values);
                return true;
            }
            case '\x85':
            case '\x86':
            case '\x87':
                make_tuple(static_cast<size_t>(code - '\x85') + 1);
                return true;
            case 'a': {
                const Value value = pop();
                append({value});
                return true;
            }
            case 'e':
                append(pop_marked());
                return true;
            case 's': {
                const Value value = pop(), key = pop();
                set({key, value});
                return true;
            }
            case 'u':
                set(pop_marked());
                return true;
            case 'p':
                memo_[static_cast<uint64_t>(take_decimal())] = top();
                return true;
            case 'q':
                memo_[take_number(1)] = top();
                return true;
            case 'r':
                memo_[take_number(4)] = top();
                return true;
            case '\x94':
                memo_[memo_.size()] = top();
                return true;
            case 'g':
                return recall(static_cast<uint64_t>(take_decimal()));
            case 'h':
                return recall(take_number(1));
            case 'j':
                return recall(take_number(4));
            case '\x93': {
                const Value what = pop(), module = pop();
                push_global(module->text, what->text);
                return true;
            }
            case 'R':
                call();
                return true;
            case 'b':
                build();
                return true;
        }
        return false;
    }

    bool recall(uint64_t place) {
        const auto found = memo_.find(place);
        if (found == memo_.end())
            fail("a value that was never kept");
        push(found->second);
        return true;
    }

    std::span<const std::byte> bytes_;
    const std::string& name_;
    size_t at_ = 0;
    std::vector<Value> stack_;
    std::vector<size_t> marks_;
    std::map<uint64_t, Value> memo_;
};

/// Writes instructions.
class Writer {
  public:
    std::vector<std::byte> bytes;

    void code(std::string_view text) {
        for (const char letter : text)
            bytes.push_back(static_cast<std::byte>(letter));
    }
    void number(uint64_t value, int size) {
        for (int i = 0; i < size; ++i)
            bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
    void text(std::string_view text) {
        const bool is_short = text.size() < 256;
        code(is_short ? "U" : "T");
        number(text.size(), is_short ? 1 : 4);
        code(text);
    }
    void integer(int64_t value) {
        if (value >= 0 && value < 256) {
            code("K");
            number(static_cast<uint64_t>(value), 1);
        } else {
            code("J");
            number(static_cast<uint64_t>(value), 4);
        }
    }
    template <typename Items, typename Write>
    void list(const Items& items, Write write) {
        code("](");
        for (const auto& item : items)
            write(item);
        code("e");
    }
    /// A numpy array of bytes, built as numpy pickles them.
    void array(std::span<const uint8_t> data, int64_t rows, int64_t columns) {
        code("cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK");
        number(0, 1);
        code("\x85");
        text("b");
        code("\x87R(K");
        number(1, 1);
        integer(rows);
        integer(columns);
        code(
            "\x86"
            "cnumpy\ndtype\n");
        text("u1");
        code("K");
        number(0, 1);
        code("K");
        number(1, 1);
        code("\x87R(K");
        number(3, 1);
        text("|");
        code("NNNJ");
        number(0xffffffff, 4);
        code("J");
        number(0xffffffff, 4);
        code("K");
        number(0, 1);
        code("tb\x89");
        text({reinterpret_cast<const char*>(data.data()), data.size()});
        code("tb");
    }
};

}  // namespace

std::shared_ptr<PickleValue> read_pickle(std::span<const std::byte> bytes,
                                         const std::string& name) {
    return Machine(bytes, name).run();
}

std::vector<std::byte> write_pickle(const PickleBatch& batch) {
    Writer writer;
    writer.code("\x80\x02}(");
    writer.text("batch_label");
    writer.text(batch.label);
    for (const auto& [key, labels] : batch.labels) {
        writer.text(key);
        writer.list(labels, [&](int label) { writer.integer(label); });
    }
    writer.text("data");
    writer.array(batch.data, batch.records, batch.columns);
    writer.text("filenames");
    writer.list(batch.filenames, [&](const std::string& name) { writer.text(name); });
    writer.code("u.");
    return std::move(writer.bytes);
}

std::vector<std::byte> write_pickle(const std::map<std::string, std::vector<std::string>>& lists) {
    Writer writer;
    writer.code("\x80\x02}(");
    for (const auto& [key, list] : lists) {
        writer.text(key);
        writer.list(list, [&](const std::string& name) { writer.text(name); });
    }
    writer.code("u.");
    return std::move(writer.bytes);
}

}  // namespace trainer::convert
