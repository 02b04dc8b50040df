// train.cpp - makes the demonstration model: a small Llama-style network that tells
// children's stories. It needs nothing but the C++17 standard library.
//
//   1. A grammar of our own writes the stories; every training row is freshly written.
//   2. A SentencePiece-style BPE vocabulary of 512 pieces is learned from those stories.
//   3. The network is trained by a hand-written backward pass and AdamW.
//   4. The result is written as a llama2.c "v0" checkpoint and tokenizer.bin.
//
// Build:  c++ -std=c++17 -O3 -march=native -ffast-math -pthread train.cpp -o train
// Train:  ./train --out DIR [--steps N] [--batch N] [--threads N] [--lr X] [--seed N]
// Sample: ./train --out DIR --sample N [--temp X] [--prompt TEXT] [--seed N]
// Test:   ./train --check            (gradients against finite differences, tokenizer)
// Corpus: ./train --corpus N         (print N stories of the grammar)
//
// -ffast-math is for this trainer only: it lets the compiler vectorise sums and exp().

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using std::size_t;

// splitmix64: small, and the same on every platform (the standard distributions are not).
struct Rng {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  float normal() {
    const float u = 1.0f - uniform();
    return std::sqrt(-2.0f * std::log(u)) * std::cos(6.2831853f * uniform());
  }
};

// ---------------------------------------------------------------------------------------
// 1. The corpus: a grammar of stories
// ---------------------------------------------------------------------------------------
//
// The notation of a rule:
//   [a|b|c]     one of the alternatives, each equally likely (an empty one is allowed)
//   {x=a|b|c}   the same, but kept in the variable x and not printed
//   $x          the value of variable x
//   <rule>      the expansion of another rule
// Sentences get their capital letter, "a" its "n" and the spaces their order in tidy().
//
// Variables that hold through a story:
//   N name, k kind, h he/she, H He/She, s his/her, m him/her, a adjective,
//   l hobby, L home - of the hero;
//   F name, f kind, i he/she, I He/She, j his/her, o him/her,
//   G "her friend Sam", E "Sam the fox" - of the friend;
//   M mom, A Mom, y she - of a grown-up.
constexpr const char* kGrammar[][2] = {
#include "GRAMMAR"
};
