# make            builds ./run, the command line: what most people want
# make test       builds and runs the tests: needs g++, make and doctest (Debian: doctest-dev; or DOCTEST=folder with doctest.h)
# make bench      measures kernels and models on this machine
# make bench-peers  measures beside llama.cpp and llama2.c, which tests/peers.py is told of by LLAMA_CPP, LLAMA2C and MODEL
# make bench-base     keeps ./run as what later ones are held against
# make bench-check    pairs that one with ./run and fails where it is over 5 % slower
# make size       prints the code size of the header on a Cortex-M4, if the compiler is there
# make cross      runs the header on every emulated target that is installed (tests/cross.sh), the microcontroller too
# make sanitize   runs the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make lint       prints the lines of each section of the header against its budget, and checks the house rules
# make clean      removes what was built
#
# CXX, CXXFLAGS, DOCTEST and BUILD can be overridden. No -m flag is needed: the header picks the SIMD at run time.

CXX ?= g++
CXXFLAGS ?= -O2
BUILD ?= build
DOCTEST ?= /usr/include/doctest
override FLAGS := -std=c++17 -pthread $(CXXFLAGS)
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wundef
HEADERS := transformer.hpp $(wildcard weights/*.hpp)
TESTS := $(patsubst tests/%.cpp,$(BUILD)/%.o,$(wildcard tests/test_*.cpp))

run: main.cpp $(HEADERS)
	$(CXX) $(FLAGS) $(WARN) main.cpp -o $@

# The unit that holds the implementation is built like the program; the others are only compiled often, so quickly.
$(BUILD)/%.o: OPT := -O0
$(BUILD)/test_main.o: OPT :=
$(BUILD)/%.o: tests/%.cpp $(HEADERS) $(wildcard tests/*.hpp)
	@mkdir -p $(BUILD)
	$(CXX) $(FLAGS) $(OPT) $(WARN) -I. -isystem $(DOCTEST) -c $< -o $@

$(BUILD)/tests: $(TESTS)
	$(CXX) $(FLAGS) $^ -o $@

doctest:
	@test -e $(DOCTEST)/doctest.h || { echo "doctest.h is missing: 'apt-get install doctest-dev' brings it, or give its folder: make test DOCTEST=path"; exit 1; }

test: doctest run
	@$(MAKE) --no-print-directory $(BUILD)/tests
	$(BUILD)/tests
	tests/cli.sh ./run
	tests/vendoring.sh

sanitize: doctest
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/sanitize CXXFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" $(BUILD)/sanitize/tests
	$(BUILD)/sanitize/tests

bench: $(BUILD)/bench
	$(BUILD)/bench

bench-base: run
	@mkdir -p $(BUILD)
	cp run $(BUILD)/run.base

bench-check: run
	@test -e $(BUILD)/run.base || { echo "there is nothing to check against: 'make bench-base' keeps the program as it is now"; exit 1; }
	tests/peers.py $(BUILD)/run.base

bench-peers: run $(BUILD)/bench
	tests/peers.py

$(BUILD)/bench: tests/bench.cpp $(HEADERS)
	@mkdir -p $(BUILD)
	$(CXX) $(FLAGS) -I. $< -o $@

size:
	tests/size.sh

cross:
	tests/cross.sh

lint:
	tests/lint.sh

clean:
	rm -rf $(BUILD) run

.PHONY: doctest test sanitize bench bench-base bench-check bench-peers size cross lint clean
