// The engine's C interface with a model whose replies the prompt itself dictates, so that the server's batching,
// text and failures can be tested without weights. Tokens 0 to 255 are bytes, 256 ends a reply, 257 is <bos>.
// After the first '|' at position k, position p predicts the token at p - k: the prompt "hello|" is answered with
// "hello" and the end. These tokens have an effect when they are evaluated:
//   258 internal error   259 logits that are not numbers   260 20 ms   261 cache full   262 hangs until cancelled
//   263 no memory
// A reply has them for the bytes 1 to 6 of the prompt: "ab\1|" is answered with "ab" and then fails.
// Drafts are right, but for a capital letter: there the draft is '?'. What is evaluated with them is one trace line.
// With kv_type f32, part of a sequence cannot be removed, as in models with recurrent state.
// A model file that begins with "slow" loads for 1.5 s; any other file than "slow" or "good" is refused.
// SCRIPTED_TRACE names a file that gets one line a decode: "seq:tokens seq:tokens".
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine.h"

namespace {

constexpr int n_vocab = 264;

int fail(char *err, size_t size, const std::string &text, int status) {
    std::snprintf(err, size, "%s", text.c_str());
    return status;
}

int32_t predict(const std::vector<int32_t> &tokens, size_t position) {
    for (size_t k = 0; k <= position; ++k) {
        if (tokens[k] != '|') continue;
        const int32_t token = tokens[position - k];
        if (token >= 1 && token <= 6) return 257 + token;
        return token == '|' ? 256 : token;
    }
    return 256;
}

}  // namespace

struct assay_model {
    int unused;
};

struct assay_session {
    assay_session_settings settings;
    std::vector<std::vector<int32_t>> sequences;
    std::vector<std::vector<float>> rows;
    assay_work work;
    size_t n_verified;
};

extern "C" {

const char *assay_build_info(void) { return "{\"version\":\"scripted\",\"faults\":\"\"}"; }
assay_model_settings assay_model_defaults(void) { return {sizeof(assay_model_settings), true, 0}; }
assay_session_settings assay_session_defaults(void) {
    assay_session_settings settings{};
    settings.struct_size = sizeof settings;
    settings.n_ctx = settings.n_seq = settings.n_threads = settings.n_threads_batch = 1;
    settings.n_ubatch = 512;
    settings.kv_type = ASSAY_KV_F16;
    settings.flash_attention = true;
    return settings;
}

int assay_model_load(const char *path, const assay_model_settings *, assay_model **model, char *err, size_t size) {
    FILE *file = std::fopen(path, "rb");
    if (file == nullptr) return fail(err, size, std::string(path) + ": no such file", ASSAY_FILE);
    char text[5] = {};
    const size_t n_read = std::fread(text, 1, 4, file);
    std::fclose(file);
    if (n_read == 4 && std::strcmp(text, "slow") == 0) usleep(1500000);
    else if (n_read != 4 || std::strcmp(text, "good") != 0) return fail(err, size, std::string(path) + ": not a model", ASSAY_FILE);
    *model = new assay_model{};
    return ASSAY_OK;
}
int assay_plan_memory(const char *path, const assay_model_settings *, const assay_session_settings *settings, assay_memory_plan *plan, char *err, size_t size) {
    if (access(path, R_OK) != 0) return fail(err, size, std::string(path) + ": no such file", ASSAY_FILE);
    if (settings->kv_type == ASSAY_KV_Q8_0) return fail(err, size, "the scripted model has no q8_0 cache", ASSAY_UNSUPPORTED);
    plan->n_ctx = settings->n_ctx == 0 ? 4096 : settings->n_ctx;
    // A cell of a mebibyte shows what does not fit without any of it.
    plan->cache_bytes = static_cast<uint64_t>(plan->n_ctx) << (settings->kv_type == ASSAY_KV_F32 && settings->n_ubatch == 256 ? 20U : 0U);
    plan->compute_bytes = settings->n_ubatch;
    return ASSAY_OK;
}
void assay_model_free(assay_model *model) { delete model; }
const char *assay_model_info(const assay_model *) { return "{\"architecture\":\"scripted\",\"n_embd\":1,\"n_params\":1,\"size_bytes\":1,\"file_type\":\"none\"}"; }
const char *assay_model_chat_template(const assay_model *) { return nullptr; }
int32_t assay_model_n_vocab(const assay_model *) { return n_vocab; }
int32_t assay_model_n_ctx_train(const assay_model *) { return 1 << 20; }
assay_token assay_model_bos(const assay_model *) { return 257; }
assay_token assay_model_eos(const assay_model *) { return 256; }
bool assay_model_add_bos(const assay_model *) { return false; }
bool assay_model_is_end(const assay_model *, assay_token token) { return token == 256; }

int assay_tokenize(const assay_model *, const char *text, size_t size, bool, bool, assay_token *tokens, size_t *n, char *err, size_t err_size) {
    const size_t capacity = *n;
    *n = size;
    if (size > capacity) return fail(err, err_size, "too small", ASSAY_FULL);
    for (size_t i = 0; i < size; ++i) tokens[i] = static_cast<unsigned char>(text[i]);
    return ASSAY_OK;
}

int assay_token_bytes(const assay_model *, assay_token token, bool render_special, const char **bytes, size_t *size) {
    static thread_local char plain[256];
    if (token < 0 || token >= n_vocab) return ASSAY_INVALID;
    if (token < 256) {
        plain[token] = static_cast<char>(token);
        *bytes = &plain[token];
        *size = 1;
        return ASSAY_OK;
    }
    *bytes = token == 256 ? "<eos>" : token == 257 ? "<bos>" : "<ctl>";
    *size = render_special ? 5 : 0;
    return ASSAY_OK;
}

int assay_session_new(const assay_model *, const assay_session_settings *settings, assay_session **session, char *err, size_t size) {
    if (settings->n_ctx > 1000000) return fail(err, size, "cannot allocate the cache", ASSAY_MEMORY);
    *session = new assay_session{*settings, std::vector<std::vector<int32_t>>(settings->n_seq), {}, {}, 0};
    return ASSAY_OK;
}
void assay_session_free(assay_session *session) { delete session; }
uint64_t assay_session_cache_bytes(const assay_session *session) { return session->settings.n_ctx; }
uint64_t assay_session_compute_bytes(const assay_session *session) { return session->settings.n_ubatch; }

static void trace(const assay_batch *batch) {
    const char *path = std::getenv("SCRIPTED_TRACE");
    if (path == nullptr) return;
    std::string line;
    for (uint32_t i = 0; i < batch->n;) {
        uint32_t end = i;
        while (end < batch->n && batch->seq_ids[end] == batch->seq_ids[i]) ++end;
        line += (line.empty() ? "" : " ") + std::to_string(batch->seq_ids[i]) + ":" + std::to_string(end - i);
        i = end;
    }
    line += '\n';
    FILE *file = std::fopen(path, "a");
    if (file == nullptr) return;
    std::fputs(line.c_str(), file);
    std::fclose(file);
}

int assay_decode(assay_session *session, const assay_batch *batch, const volatile int *cancel, char *err, size_t size) {
    trace(batch);
    const auto before = session->sequences;
    const auto undo = [&](const char *text, int status) {
        session->sequences = before;
        return fail(err, size, text, status);
    };
    session->rows.assign(batch->n, {});
    for (uint32_t i = 0; i < batch->n; ++i) {
        const int32_t token = batch->tokens[i];
        auto &sequence = session->sequences[static_cast<size_t>(batch->seq_ids[i])];
        if (batch->positions[i] != static_cast<int32_t>(sequence.size())) return undo("a position was left out", ASSAY_INVALID);
        sequence.push_back(token);
        size_t n_cells = sequence.size();
        if (session->settings.kv_unified) {
            n_cells = 0;
            for (const auto &each : session->sequences) n_cells += each.size();
        }
        if (token == 261 || n_cells > session->settings.n_ctx) return undo("the cache has no room for the batch", ASSAY_FULL);
        if (token == 263) return undo("an allocation failed", ASSAY_MEMORY);
        if (token == 258) return undo("the scripted failure", ASSAY_INTERNAL);
        if (token == 260) usleep(20000);
        while (token == 262) {
            if (__atomic_load_n(cancel, __ATOMIC_RELAXED) != 0) return undo("cancelled", ASSAY_CANCELLED);
            usleep(1000);
        }
        if (batch->logits[i] == 0) continue;
        std::vector<float> row(n_vocab, 0.0F);
        row[static_cast<size_t>(predict(sequence, sequence.size() - 1))] = 10.0F;
        if (token == 259) row.assign(n_vocab, std::nanf(""));
        session->rows[i] = row;
    }
    ++session->work.n_decode_calls;
    ++session->work.n_graphs;
    session->work.n_tokens_evaluated += batch->n;
    return ASSAY_OK;
}
int assay_decode_rows(assay_session *, const assay_rows *, const volatile int *, char *err, size_t size) {
    return fail(err, size, "the scripted model takes no rows", ASSAY_UNSUPPORTED);
}
const float *assay_logits(const assay_session *session, uint32_t i) {
    return i < session->rows.size() && !session->rows[i].empty() ? session->rows[i].data() : nullptr;
}

int assay_draft_propose(assay_session *session, int32_t seq, assay_token last, uint32_t n, float, assay_token *drafts, uint32_t *n_drafts, char *err, size_t size) {
    if (n > session->settings.n_draft) return fail(err, size, "too many drafts", ASSAY_INVALID);
    auto tokens = session->sequences[static_cast<size_t>(seq)];
    tokens.push_back(last);
    for (uint32_t i = 0; i < n; ++i) {
        const int32_t next = predict(tokens, tokens.size() - 1);
        drafts[i] = next >= 'A' && next <= 'Z' ? '?' : next;
        tokens.push_back(drafts[i]);
    }
    *n_drafts = n;
    return ASSAY_OK;
}
int assay_draft_verify(assay_session *session, int32_t seq, const assay_token *tokens, uint32_t n, const volatile int *cancel, char *err, size_t size) {
    if (n > session->settings.n_draft + 1 || session->n_verified > 0) return fail(err, size, "no verification is possible", ASSAY_INVALID);
    std::vector<int32_t> positions, seqs(n, seq);
    for (uint32_t i = 0; i < n; ++i) positions.push_back(static_cast<int32_t>(session->sequences[static_cast<size_t>(seq)].size() + i));
    const std::vector<uint8_t> logits(n, 1);
    const assay_batch batch{n, tokens, positions.data(), seqs.data(), logits.data()};
    const int status = assay_decode(session, &batch, cancel, err, size);
    if (status == ASSAY_OK) session->n_verified = n;
    return status;
}
int assay_draft_accept(assay_session *session, int32_t seq, uint32_t n_keep, char *err, size_t size) {
    if (n_keep == 0 || n_keep > session->n_verified) return fail(err, size, "that many were not verified", ASSAY_INVALID);
    auto &sequence = session->sequences[static_cast<size_t>(seq)];
    sequence.resize(sequence.size() - (session->n_verified - n_keep));
    session->n_verified = 0;
    session->work.n_accepted += n_keep - 1;
    return ASSAY_OK;
}
const char *assay_session_info(assay_session *session) {
    static std::string text;
    text = "{\"n_decoded\":" + std::to_string(session->work.n_decode_calls) + "}";
    return text.c_str();
}

int assay_seq_remove(assay_session *session, int32_t seq, int32_t from, int32_t, char *err, size_t size) {
    if (from == 0) session->n_verified = 0;
    if (session->n_verified > 0) return fail(err, size, "a verification waits", ASSAY_INVALID);
    if (from > 0 && session->settings.kv_type == ASSAY_KV_F32) return fail(err, size, "a part of the state cannot be removed", ASSAY_UNSUPPORTED);
    session->sequences[static_cast<size_t>(seq)].resize(static_cast<size_t>(from));
    return ASSAY_OK;
}
uint32_t assay_seq_cells(const assay_session *session, int32_t seq) {
    return static_cast<uint32_t>(session->sequences[static_cast<size_t>(seq)].size());
}

size_t assay_state_size(const assay_session *session, int32_t seq) { return 4 * session->sequences[static_cast<size_t>(seq)].size(); }
int assay_state_save(const assay_session *session, int32_t seq, void *data, size_t size, size_t *written, char *, size_t) {
    if (size > 0) std::memcpy(data, session->sequences[static_cast<size_t>(seq)].data(), size);
    *written = size;
    return ASSAY_OK;
}
int assay_state_restore(assay_session *session, int32_t seq, const void *data, size_t size, char *, size_t) {
    auto &sequence = session->sequences[static_cast<size_t>(seq)];
    sequence.resize(size / 4);
    if (size > 0) std::memcpy(sequence.data(), data, size);
    return ASSAY_OK;
}

void assay_work_read(const assay_session *session, assay_work *work) {
    const size_t size = work->struct_size;
    *work = session->work;
    work->struct_size = size;
}
}
