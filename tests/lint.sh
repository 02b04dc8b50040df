#!/bin/bash
# Lines of each section of transformer.hpp against the budget that its table of contents states, and the house rules that a
# program can check. Exit status 1 if a budget or a rule is broken.
cd "$(dirname "$0")/.." || exit 1
fail=0
awk '
    /^\/\/ >> [0-9]+ / {
        n = $3; name = $0; sub(/^\/\/ >> [0-9]+ /, "", name); sub(/ -*$/, "", name); start[n] = NR; title[n] = name; last = n
        if (n > 1) length_of[n - 1] = NR - start[n - 1]
        next
    }
    /^\/\/ +>> [0-9]+ / { b = $0; match(b, />> [0-9]+/); n = substr(b, RSTART + 3, RLENGTH - 3); split(substr(b, 39, 8), f, " "); budget[n + 0] = f[1] + 0 }
    END {
        length_of[last] = NR - start[last]
        printf "%-4s %-18s %7s %7s\n", "", "section", "lines", "budget"
        for (i = 1; i <= last; i++) {
            over = length_of[i] > budget[i] ? "  OVER" : ""
            printf "%-4d %-18s %7d %7d%s\n", i, title[i], length_of[i], budget[i], over
            total += length_of[i]; allowed += budget[i]; if (over != "") bad = 1
        }
        printf "%-4s %-18s %7d %7d\n", "", "all", total, allowed
        exit bad
    }' transformer.hpp || { echo "lint: a section is over its budget: delete something, or argue the new number in the contents"; fail=1; }

rule() { # text, command that prints offending lines
    local found
    found=$(eval "$2")
    [ -z "$found" ] || { echo "lint: $1"; echo "$found" | head -5 | sed 's/^/    /'; fail=1; }
}
core=$(awk '/^\/\/ >> 24 Threads/ { exit } { print FNR ": " $0 }' transformer.hpp)
rule "the header may not allocate, print, exit or throw outside the files section" \
    'echo "$core" | grep -nE "\b(malloc|calloc|free|printf|abort|exit|throw|new|delete|std::)\b *[(<]|\btry\b *\{" | grep -v "//.*\b\(throws\|prints\)"'
rule "intrinsics stand inside rooms only" \
    'awk "/^struct (Avx|Neon)/ { room = 1 } /^};/ { room = 0 } !room && /_mm[0-9]*_|\yv[a-z]+q?_[fsu](8|16|32)\y/ { print FNR \": \" \$0 }" transformer.hpp'
rule "lines are at most 128 columns (tables, strings and directives may be longer)" \
    'awk "length > 128 && !/^ *(case |#|X\\(|\")|\"[^\"]{60}/ { print FILENAME \":\" FNR }" transformer.hpp main.cpp'
rule "lines of weights/*.hpp are at most 120 columns (patterns and the Unicode tables may be longer)" \
    'awk "length > 120 && !/R\"/ && FILENAME !~ /unicode/ { print FILENAME \":\" FNR }" weights/*.hpp'
rule "conditionals stand in three places only: switches, rooms, files" \
    'awk "/^\/\/ >> / { s = \$3 } /^[ ]*#[ ]*(if|elif|else)/ && s != 1 && s != \"\" && s != 7 && s != 18 && s != 19 && s != 24 && s != 25 && s != 23 { print FNR \": \" \$0 }" transformer.hpp'
rule "no word about how the project is made" 'grep -nE "/work/|/tmp/|TODO|FIXME|XXX" transformer.hpp main.cpp weights/*.hpp weights/*.cpp README.md weights/README.md 2>/dev/null'
[ $fail = 0 ] && echo "lint: clean"
exit $fail
