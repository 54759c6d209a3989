// FlatObject: the numbers of one line of JSON, read at the speed that gigabytes of log ask for.
#pragma once

#include <functional>
#include <string_view>

namespace trainer::logs {

/// A value: a number, or the text of a string as it stands in the file (escapes and all). Of
/// others (true, null, nested ones) neither.
struct FlatValue {
    bool is_number = false;
    double number = 0;
    std::string_view text;
};

/// Calls `member` for each member of the object that `line` is. Returns false where the line is no
/// whole JSON object; members before the fault have been told by then.
bool read_flat_object(std::string_view line,
                      const std::function<void(std::string_view, const FlatValue&)>& member);

}  // namespace trainer::logs
