// A language model in a firmware: weights in flash, one static buffer, no heap. Copy this file, transformer.hpp and weights.S.
//
//     run import SOURCE model.bin --type q8_0 --ctx-size 256 --header model.hpp
//
// makes the checkpoint that weights.S links into flash and the header with its sizes. What is the board's own is put().
#define TRANSFORMER_IMPLEMENTATION
#include "model.hpp"                                           // says what of transformer.hpp the model needs, and includes it

extern "C" const unsigned char weights[];                      // weights.S
void put(const char* text, uint32_t n);                        // send text somewhere: a UART, a display

static transformer::Model net;                                 // views into the weights
static transformer::Session session;
static transformer::GenerateOptions options;
alignas(64) static unsigned char memory[model::session_bytes]; // exact: scratch, logits and the KV cache

static bool emit(void*, const char* text, uint32_t n)          // false would stop
{
    put(text, n);
    return true;
}

static transformer::Status tell_story()
{
    transformer::Status status = transformer::open(weights, model::checkpoint_bytes, &net);
    if (!status) return status;
    if (memcmp(&net.main.config, &model::config, sizeof model::config) != 0)
        return {transformer::Code::bad_config, "model.hpp was made for another checkpoint", "config", 0};
    status = transformer::start(net, model::options, memory, sizeof memory, &session);
    if (!status) return status;
    options.max_tokens = 200;
    options.sampler.temperature = 0;                           // greedy
    return transformer::generate(session, &net.vocabulary.bos, 1, options, emit, nullptr);
}

int main()
{
    const transformer::Status status = tell_story();
    if (!status) put(status.text, static_cast<uint32_t>(strlen(status.text)));
    return status ? 0 : 1;
}
