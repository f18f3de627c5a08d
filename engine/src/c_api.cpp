// The C boundary: turns exceptions into status codes and text, and pointers into objects.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "build_info.h"
#include "engine.h"
#include "failure.h"
#include "model.h"
#include "norm.h"
#include "session.h"

struct assay_model {
    assay::Model model;
};

struct assay_session {
    std::unique_ptr<assay::Session> session;
    std::string info;
};

namespace {

using assay::Failure;

void write_error(char* err, size_t err_size, const char* text) {
    if (err == nullptr || err_size == 0) return;
    std::snprintf(err, err_size, "%s", text);
    for (char* c = err; *c != '\0'; ++c) {
        if (*c == '\n' || *c == '\r') *c = ' ';  // one line, whatever a file put into the text
    }
}

template <class Action>
int guarded(char* err, size_t err_size, Action action) {
    if (err != nullptr && err_size > 0) err[0] = '\0';
    try {
        action();
        return ASSAY_OK;
    } catch (const Failure& failure) {
        write_error(err, err_size, failure.what());
        return failure.status();
    } catch (const std::bad_alloc&) {
        write_error(err, err_size, "an allocation failed");
        return ASSAY_MEMORY;
    } catch (const std::exception& error) {
        write_error(err, err_size, error.what());
        return ASSAY_INTERNAL;
    } catch (...) {
        write_error(err, err_size, "an unknown error occurred");
        return ASSAY_INTERNAL;
    }
}

void need(bool holds, const char* text) {
    if (!holds) throw Failure(ASSAY_INVALID, text);
}

// Takes a caller's struct of an older ABI: what it does not have keeps its default.
template <class Settings>
Settings take_settings(const Settings* given, Settings settings) {
    if (given == nullptr) return settings;
    need(given->struct_size >= sizeof(size_t) && given->struct_size <= sizeof(Settings),
         "struct_size of the settings is not one that this library knows; start from the defaults function");
    std::memcpy(static_cast<void*>(&settings), given, given->struct_size);
    settings.struct_size = sizeof(Settings);
    return settings;
}

assay::Session& session_of(assay_session* session) {
    need(session != nullptr, "the session is NULL");
    return *session->session;
}

const assay::Session& session_of(const assay_session* session) {
    need(session != nullptr, "the session is NULL");
    return *session->session;
}

const assay::Tokenizer& tokenizer_of(const assay_model* model) {
    need(model != nullptr, "the model is NULL");
    if (model->model.tokenizer() == nullptr) throw Failure(ASSAY_UNSUPPORTED, "the file has no tokenizer");
    return *model->model.tokenizer();
}

}  // namespace

extern "C" {

assay_model_settings assay_model_defaults(void) {
    assay_model_settings settings{};
    settings.struct_size = sizeof settings;
    settings.use_mmap = true;
    return settings;
}

assay_session_settings assay_session_defaults(void) {
    assay_session_settings settings{};
    settings.struct_size = sizeof settings;
    settings.n_ctx = 2048;
    settings.n_seq = 1;
    settings.n_ubatch = 512;
    settings.n_threads = 2;
    settings.n_threads_batch = 2;
    settings.kv_type = ASSAY_KV_F16;
    settings.flash_attention = true;
    settings.draft_kv_type = ASSAY_KV_F16;
    settings.ple_cache_bytes = UINT64_C(64) << 20;
    settings.strip_bytes = UINT64_C(64) << 20;
    return settings;
}

const char* assay_build_info(void) { return assay::build_info(); }

int assay_plan_memory(const char* path, const assay_model_settings* model_settings,
                      const assay_session_settings* session_settings, assay_memory_plan* plan, char* err,
                      size_t err_size) {
    return guarded(err, err_size, [&] {
        need(path != nullptr && plan != nullptr, "path and plan are needed");
        assay_session_settings settings = take_settings(session_settings, assay_session_defaults());
        assay_memory_plan found{};
        found.struct_size = sizeof found;
        need(plan->struct_size >= sizeof(size_t) && plan->struct_size <= sizeof found,
             "struct_size of the plan is not one that this library knows");
        assay::MemoryPlan bytes;
        const assay::Model model(path, take_settings(model_settings, assay_model_defaults()), &bytes);
        if (settings.n_ctx == 0) settings.n_ctx = std::min(model.hyper().n_ctx_train, 4096U);
        found.n_ctx = settings.n_ctx;
        found.file_bytes = model.file().mapping().size();
        found.weight_bytes = bytes.host_bytes + bytes.device_bytes;
        assay::make_session(model, settings);
        found.compute_bytes = bytes.compute_bytes;
        found.device_bytes = bytes.device_bytes;
        found.cache_bytes = bytes.host_bytes + bytes.device_bytes - found.weight_bytes - found.compute_bytes;
        if (model.uses_accelerator()) {
            size_t n_total = 0;
            size_t n_free = 0;
            ggml_backend_dev_memory(assay::devices().accelerator, &n_free, &n_total);
            found.device_free_bytes = n_free;
        }
        const size_t size = plan->struct_size;
        std::memcpy(static_cast<void*>(plan), &found, size);
        plan->struct_size = size;
    });
}

int assay_model_load(const char* path, const assay_model_settings* settings, assay_model** model, char* err,
                     size_t err_size) {
    return guarded(err, err_size, [&] {
        need(path != nullptr && model != nullptr, "path and model are needed");
        *model = nullptr;
        *model = new assay_model{assay::Model(path, take_settings(settings, assay_model_defaults()))};
    });
}

void assay_model_free(assay_model* model) { delete model; }

const char* assay_model_info(const assay_model* model) {
    return model == nullptr ? nullptr : model->model.info().c_str();
}

const char* assay_model_chat_template(const assay_model* model) {
    const std::string* text = model == nullptr ? nullptr : model->model.chat_template();
    return text == nullptr ? nullptr : text->c_str();
}

int32_t assay_model_n_vocab(const assay_model* model) {
    return model == nullptr ? -1 : static_cast<int32_t>(model->model.hyper().n_vocab);
}

int32_t assay_model_n_ctx_train(const assay_model* model) {
    return model == nullptr ? -1 : static_cast<int32_t>(model->model.hyper().n_ctx_train);
}

assay_token assay_model_bos(const assay_model* model) {
    const assay::Tokenizer* tokenizer = model == nullptr ? nullptr : model->model.tokenizer();
    return tokenizer == nullptr ? -1 : tokenizer->bos();
}

assay_token assay_model_eos(const assay_model* model) {
    const assay::Tokenizer* tokenizer = model == nullptr ? nullptr : model->model.tokenizer();
    return tokenizer == nullptr ? -1 : tokenizer->eos();
}

bool assay_model_add_bos(const assay_model* model) {
    const assay::Tokenizer* tokenizer = model == nullptr ? nullptr : model->model.tokenizer();
    return tokenizer != nullptr && tokenizer->add_bos();
}

bool assay_model_is_end(const assay_model* model, assay_token token) {
    const assay::Tokenizer* tokenizer = model == nullptr ? nullptr : model->model.tokenizer();
    return tokenizer != nullptr && token >= 0 && token < tokenizer->size() && tokenizer->is_end(token);
}

int assay_tokenize(const assay_model* model, const char* text, size_t text_size, bool add_special, bool parse_special,
                   assay_token* tokens, size_t* n_tokens, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        const assay::Tokenizer& tokenizer = tokenizer_of(model);
        need(n_tokens != nullptr && (text != nullptr || text_size == 0), "text and n_tokens are needed");
        const std::vector<int32_t> ids =
            tokenizer.encode({text == nullptr ? "" : text, text_size}, add_special, parse_special);
        const size_t capacity = tokens == nullptr ? 0 : *n_tokens;
        *n_tokens = ids.size();
        if (ids.size() > capacity) {
            throw Failure(ASSAY_FULL, "the text has " + std::to_string(ids.size()) + " tokens, there is room for " +
                                          std::to_string(capacity));
        }
        if (!ids.empty()) std::memcpy(tokens, ids.data(), ids.size() * sizeof(assay_token));
    });
}

int assay_token_bytes(const assay_model* model, assay_token token, bool render_special, const char** bytes,
                      size_t* size) {
    return guarded(nullptr, 0, [&] {
        const assay::Tokenizer& tokenizer = tokenizer_of(model);
        need(bytes != nullptr && size != nullptr && token >= 0 && token < tokenizer.size(), "no such token");
        const std::string_view view = tokenizer.bytes(token, render_special);
        *bytes = view.data();
        *size = view.size();
    });
}

int assay_session_new(const assay_model* model, const assay_session_settings* settings, assay_session** session,
                      char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(model != nullptr && session != nullptr, "model and session are needed");
        *session = nullptr;
        *session = new assay_session{assay::make_session(model->model, take_settings(settings, assay_session_defaults())), {}};
    });
}

void assay_session_free(assay_session* session) { delete session; }

uint64_t assay_session_cache_bytes(const assay_session* session) {
    return session == nullptr ? 0 : session->session->cache_bytes();
}

uint64_t assay_session_compute_bytes(const assay_session* session) {
    return session == nullptr ? 0 : session->session->compute_bytes();
}

int assay_decode(assay_session* session, const assay_batch* batch, const volatile int* cancel, char* err,
                 size_t err_size) {
    return guarded(err, err_size, [&] {
        need(batch != nullptr, "the batch is NULL");
        session_of(session).decode(*batch, cancel);
#if defined(ASSAY_FAULT_NONDETERMINISTIC)
        for (uint32_t i = 0; i < batch->n; ++i) {
            const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
            auto* row = const_cast<float*>(session->session->logits(i));
            if (row != nullptr) row[now % 257] += 1e-3F * static_cast<float>(now % 1009);
        }
#endif
#if defined(ASSAY_FAULT_LEAK)
        // Touched, so that the memory is resident, and seen, so that it is not optimised away.
        static void* volatile lost = nullptr;
        lost = std::malloc(size_t{1} << 16U);
        std::memset(lost, 1, size_t{1} << 16U);
#endif
    });
}

int assay_decode_rows(assay_session* session, const assay_rows* rows, const volatile int* cancel, char* err,
                      size_t err_size) {
    return guarded(err, err_size, [&] {
        need(rows != nullptr && rows->struct_size == sizeof(assay_rows), "rows with their struct_size are needed");
        session_of(session).decode_rows(*rows, cancel);
    });
}

const float* assay_logits(const assay_session* session, uint32_t i) {
    return session == nullptr ? nullptr : session->session->logits(i);
}

int assay_draft_propose(assay_session* session, int32_t seq, assay_token last, uint32_t n, float p_min,
                        assay_token* drafts, uint32_t* n_drafts, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(drafts != nullptr && n_drafts != nullptr, "drafts and n_drafts are needed");
        const std::vector<int32_t> found = session_of(session).propose(seq, last, n, p_min);
        std::copy(found.begin(), found.end(), drafts);
        *n_drafts = static_cast<uint32_t>(found.size());
    });
}

int assay_draft_verify(assay_session* session, int32_t seq, const assay_token* tokens, uint32_t n,
                       const volatile int* cancel, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(tokens != nullptr, "tokens are needed");
        session_of(session).verify(seq, tokens, n, cancel);
    });
}

int assay_draft_accept(assay_session* session, int32_t seq, uint32_t n_keep, char* err, size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).accept(seq, n_keep); });
}

int assay_draft_round(assay_session* session, int32_t seq, assay_token last, uint32_t n_left, uint32_t depth,
                      float p_min, const volatile int* cancel, assay_token* tokens, assay_token* drafts,
                      assay_draft_round_result* result, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(tokens != nullptr && result != nullptr && result->struct_size == sizeof *result,
             "tokens and a result with its struct_size are needed");
        const assay::Session::Round round = session_of(session).draft_round(seq, last, n_left, depth, p_min, cancel);
        std::copy(round.tokens.begin(), round.tokens.end(), tokens);
        if (drafts != nullptr) std::copy(round.drafts.begin(), round.drafts.end(), drafts);
        result->n_tokens = static_cast<uint32_t>(round.tokens.size());
        result->n_drafted = static_cast<uint32_t>(round.drafts.size());
        result->n_accepted = round.n_accepted;
    });
}

int assay_seq_remove(assay_session* session, int32_t seq, int32_t p0, int32_t p1, char* err, size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).remove(seq, p0, p1); });
}

int assay_seq_copy(assay_session* session, int32_t src, int32_t dst, int32_t p0, int32_t p1, char* err,
                   size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).copy(src, dst, p0, p1); });
}

int assay_seq_keep(assay_session* session, int32_t seq, char* err, size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).keep(seq); });
}

int assay_seq_shift(assay_session* session, int32_t seq, int32_t p0, int32_t p1, int32_t delta, char* err,
                    size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).shift(seq, p0, p1, delta); });
}

int32_t assay_seq_last(const assay_session* session, int32_t seq) {
    int32_t last = -1;
    guarded(nullptr, 0,
            [&] { last = session_of(session).last_position(session_of(session).check_sequence(seq)); });
    return last;
}

uint32_t assay_seq_cells(const assay_session* session, int32_t seq) {
    uint32_t n = 0;
    guarded(nullptr, 0, [&] { n = session_of(session).n_cells_of(session_of(session).check_sequence(seq)); });
    return n;
}

size_t assay_state_size(const assay_session* session, int32_t seq) {
    size_t size = 0;
    guarded(nullptr, 0, [&] { size = session_of(session).state_size(seq); });
    return size;
}

int assay_state_save(const assay_session* session, int32_t seq, void* data, size_t size, size_t* written, char* err,
                     size_t err_size) {
    return guarded(err, err_size, [&] {
        const size_t n = session_of(session).save_state(seq, static_cast<uint8_t*>(data), size);
        if (written != nullptr) *written = n;
    });
}

int assay_state_restore(assay_session* session, int32_t seq, const void* data, size_t size, char* err,
                        size_t err_size) {
    return guarded(err, err_size,
                   [&] { session_of(session).restore_state(seq, static_cast<const uint8_t*>(data), size); });
}

int assay_fill_zero(assay_session* session, int32_t seq, uint32_t n, char* err, size_t err_size) {
    return guarded(err, err_size, [&] { session_of(session).fill_zero(seq, n); });
}

int assay_capture_start(assay_session* session, const char* names, uint64_t max_bytes, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(names != nullptr, "names are needed");
        session_of(session).capture().start(names, max_bytes);
    });
}

void assay_capture_stop(assay_session* session) {
    guarded(nullptr, 0, [&] { session_of(session).capture().stop(); });
}

uint32_t assay_capture_count(const assay_session* session) {
    return session == nullptr ? 0 : static_cast<uint32_t>(session->session->captured().entries().size());
}

int assay_capture_get(const assay_session* session, uint32_t i, assay_captured* captured, char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        const auto& entries = session_of(session).captured().entries();
        need(captured != nullptr && captured->struct_size == sizeof *captured, "captured with its struct_size is needed");
        need(i < entries.size(), "there is no such captured tensor");
        const assay::Capture::Entry& entry = entries[i];
        *captured = {sizeof *captured, entry.name.c_str(), entry.type, entry.ubatch, {}, nullptr, entry.size_bytes};
        std::copy(entry.shape, entry.shape + 4, captured->shape);
        if (!entry.data.empty()) captured->data = entry.data.data();
    });
}

int assay_norm_check(uint32_t n_rows, uint32_t width, bool on_accelerator, double* worst_error, uint64_t* elapsed_ns,
                     char* err, size_t err_size) {
    return guarded(err, err_size, [&] {
        need(worst_error != nullptr && elapsed_ns != nullptr, "worst_error and elapsed_ns are needed");
        const assay::NormCheck found = assay::check_norm(n_rows, width, on_accelerator);
        *worst_error = found.worst_error;
        *elapsed_ns = found.elapsed_ns;
    });
}

const char* assay_session_info(assay_session* session) {
    if (session == nullptr) return nullptr;
    const int status = guarded(nullptr, 0, [&] { session->info = session->session->info(); });
    return status == ASSAY_OK ? session->info.c_str() : nullptr;
}

void assay_work_read(const assay_session* session, assay_work* work) {
    if (session == nullptr || work == nullptr) return;
    const size_t size = work->struct_size;
    if (size < sizeof(size_t) || size > sizeof(assay_work)) return;
    std::memcpy(static_cast<void*>(work), &session->session->work(), size);
    work->struct_size = size;
}

void assay_work_reset(assay_session* session) {
    if (session != nullptr) session->session->reset_work();
}

}  // extern "C"
