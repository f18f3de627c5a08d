// A library with the real interface and a model that anyone can compute: the logits of token t at position p are
// 1000 t + 10 p + kv_type in column 0, the sequence in column 1 and the number of cells of that sequence in column 2.
// Token 66 aborts, 67 hangs, 68 is refused, 69 ends the process with code 9.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine.h"

namespace {
constexpr int kVocab = 70;
int say(char *err, size_t size, const char *text, int status) {
    std::snprintf(err, size, "%s", text);
    return status;
}
}  // namespace

struct assay_model {
    std::string info;
};
struct assay_session {
    assay_session_settings settings;
    std::vector<uint32_t> cells;
    std::vector<std::vector<float>> rows;
    uint64_t tokens;
};

extern "C" {
#ifndef FAKE_ABI
#define FAKE_ABI 1
#endif
#define TEXT(x) #x
#define NUMBER(x) TEXT(x)
const char *assay_build_info(void) { return "{\"abi\":" NUMBER(FAKE_ABI) ",\"version\":\"fake\",\"faults\":\"\"}"; }
assay_model_settings assay_model_defaults(void) { return {sizeof(assay_model_settings), true, 0}; }
assay_session_settings assay_session_defaults(void) {
    assay_session_settings settings{};
    settings.struct_size = sizeof settings;
    settings.n_ctx = settings.n_seq = 1;
    settings.n_ubatch = 512;
    settings.n_threads = settings.n_threads_batch = 4;
    settings.kv_type = ASSAY_KV_F16;
    settings.flash_attention = true;
    return settings;
}
int assay_model_load(const char *path, const assay_model_settings *settings, assay_model **model, char *err, size_t n) {
    std::puts("a stray line on standard output");
    std::fflush(stdout);
    std::fprintf(stderr, "loading %s\n", path);
    FILE *file = std::fopen(path, "rb");
    if (file == nullptr) return say(err, n, "no such file", ASSAY_FILE);
    std::fclose(file);
    *model = new assay_model{"{\"use_mmap\":" + std::string(settings->use_mmap ? "true" : "false") +
                             ",\"n_gpu_layers\":" + std::to_string(settings->n_gpu_layers) +
                             ",\"struct_size\":" + std::to_string(settings->struct_size) + "}"};
    return ASSAY_OK;
}
const char *assay_model_info(const assay_model *model) { return model->info.c_str(); }
int32_t assay_model_n_vocab(const assay_model *) { return kVocab; }
int assay_tokenize(const assay_model *, const char *text, size_t size, bool add_special, bool parse_special,
                   assay_token *tokens, size_t *n, char *err, size_t err_size) {
    // Every byte becomes three ids, so that the first guess of a capacity is too small.
    size_t need = 3 * size + (add_special ? 1 : 0) + (parse_special ? 1 : 0);
    size_t capacity = *n;
    *n = need;
    if (capacity < need) return say(err, err_size, "too small", ASSAY_FULL);
    size_t at = 0;
    if (add_special) tokens[at++] = 1000;
    if (parse_special) tokens[at++] = 1001;
    for (size_t i = 0; i < size; i++)
        for (int k = 0; k < 3; k++) tokens[at++] = static_cast<unsigned char>(text[i]);
    return ASSAY_OK;
}
int assay_token_bytes(const assay_model *, assay_token token, bool render_special, const char **bytes, size_t *size) {
    static const char special[] = "<s>";
    static char plain[256];
    if (token < 0 || token > 1001) return ASSAY_INVALID;
    if (token >= 1000) {
        *bytes = special;
        *size = render_special ? 3 : 0;
        return ASSAY_OK;
    }
    plain[token & 255] = static_cast<char>(token);
    *bytes = &plain[token & 255];
    *size = 1;
    return ASSAY_OK;
}
int assay_session_new(const assay_model *, const assay_session_settings *settings, assay_session **session, char *err,
                      size_t n) {
    if (settings->n_ctx > 100000) return say(err, n, "not enough memory for 100001 cells", ASSAY_MEMORY);
    *session = new assay_session{*settings, std::vector<uint32_t>(settings->n_seq), {}, 0};
    return ASSAY_OK;
}
void assay_session_free(assay_session *session) { delete session; }
uint64_t assay_session_cache_bytes(const assay_session *s) { return uint64_t{s->settings.n_ctx} * s->settings.n_seq; }
uint64_t assay_session_compute_bytes(const assay_session *s) {
    return s->settings.n_ubatch + 1000 * s->settings.n_threads + 1000000 * s->settings.n_threads_batch +
           (s->settings.kv_unified ? 500 : 0) + (s->settings.flash_attention ? 0 : 250);
}
int assay_decode(assay_session *s, const assay_batch *batch, const volatile int *, char *err, size_t n) {
    s->rows.assign(batch->n, {});
    for (uint32_t i = 0; i < batch->n; i++) {
        switch (batch->tokens[i]) {
            case 66: std::fputs("about to abort\n", stderr); std::abort();
            case 67: sleep(600); break;
            case 68: return say(err, n, "the cache has no room for the batch", ASSAY_FULL);
            case 69: _exit(9);
        }
        auto seq = static_cast<size_t>(batch->seq_ids[i]);
        s->cells[seq]++;
        s->tokens++;
        if (batch->logits[i] == 0) continue;
        std::vector<float> row(kVocab, 0.5F);
        row[0] = static_cast<float>(1000 * batch->tokens[i] + 10 * batch->positions[i] + s->settings.kv_type);
        row[1] = static_cast<float>(seq);
        row[2] = static_cast<float>(s->cells[seq]);
        s->rows[i] = row;
    }
    return ASSAY_OK;
}
const float *assay_logits(const assay_session *s, uint32_t i) { return s->rows[i].empty() ? nullptr : s->rows[i].data(); }
int assay_seq_remove(assay_session *s, int32_t seq, int32_t, int32_t, char *, size_t) {
    s->cells[static_cast<size_t>(seq)] = 0;
    return ASSAY_OK;
}
int assay_seq_copy(assay_session *s, int32_t source, int32_t target, int32_t p0, int32_t p1, char *err, size_t n) {
    if (source == target) return say(err, n, "a copy needs two sequences", ASSAY_INVALID);
    uint32_t last = p1 < 0 ? s->cells[static_cast<size_t>(source)] : static_cast<uint32_t>(p1);
    s->cells[static_cast<size_t>(target)] = last - static_cast<uint32_t>(p0);
    return ASSAY_OK;
}
int assay_seq_keep(assay_session *s, int32_t seq, char *, size_t) {
    for (size_t i = 0; i < s->cells.size(); i++)
        if (static_cast<int32_t>(i) != seq) s->cells[i] = 0;
    return ASSAY_OK;
}
size_t assay_state_size(const assay_session *, int32_t) { return 64; }
int assay_state_save(const assay_session *s, int32_t seq, void *data, size_t size, size_t *written, char *, size_t) {
    std::memset(data, 0, size);
    std::memcpy(data, &s->cells[static_cast<size_t>(seq)], 4);
    *written = 5;
    return ASSAY_OK;
}
int assay_state_restore(assay_session *s, int32_t seq, const void *data, size_t size, char *err, size_t n) {
    if (size != 5) return say(err, n, "the state is truncated", ASSAY_INVALID);
    std::memcpy(&s->cells[static_cast<size_t>(seq)], data, 4);
    return ASSAY_OK;
}
int assay_fill_zero(assay_session *s, int32_t seq, uint32_t cells, char *err, size_t n) {
    if (cells > s->settings.n_ctx) return say(err, n, "more cells than the context has", ASSAY_FULL);
    s->cells[static_cast<size_t>(seq)] = cells;
    return ASSAY_OK;
}
void assay_work_read(const assay_session *s, assay_work *work) {
    work->n_decode_calls = work->struct_size;
    work->n_tokens_evaluated = s->tokens;
    work->n_flops = 1ULL << 60;
}
void assay_work_reset(assay_session *s) { s->tokens = 0; }
}
