# Prints the C++ code blocks of a Markdown page that define a class.
/^```cpp/ { inside = 1; text = ""; next }
/^```/ { if (inside && text ~ /^class/) printf "%s", text; inside = 0 }
inside { text = text $0 "\n" }
