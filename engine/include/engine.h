/* The narrow C boundary of the bundled engine.
 *
 * A model is read-only and shared; a session is one mutable set of sequences
 * (cells, positions, logits) over a model and belongs to one thread at a time.
 * Nothing here knows about HTTP, JSON requests or sampling, so that the server
 * and the Python worker stand on the same ground and neither depends on tensor
 * internals.
 *
 * Every function that can fail returns ASSAY_OK or an error code and writes one
 * line of text (never more than err_size bytes, always terminated) that says
 * what was wrong and what to change. No function aborts or throws.
 */
#ifndef ASSAY_ENGINE_H
#define ASSAY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ASSAY_API __attribute__((visibility("default")))
#else
#define ASSAY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_ENGINE_ABI 1

enum assay_status {
    ASSAY_OK = 0,
    ASSAY_INVALID = 1,     /* an argument or a setting is wrong */
    ASSAY_UNSUPPORTED = 2, /* the model or the request needs something that the engine lacks */
    ASSAY_FILE = 3,        /* the file is missing, truncated or malformed */
    ASSAY_FULL = 4,        /* the cache has no room for the batch; nothing was changed */
    ASSAY_MEMORY = 5,      /* an allocation failed; the session can still be used */
    ASSAY_CANCELLED = 6,   /* the cancel flag was raised during a decode */
    ASSAY_INTERNAL = 7,
};

enum assay_kv_type { ASSAY_KV_F32 = 0, ASSAY_KV_F16 = 1, ASSAY_KV_Q8_0 = 8 };

typedef struct assay_model assay_model;
typedef struct assay_session assay_session;
typedef int32_t assay_token;

/* What a session over a file would take in memory. */
typedef struct assay_memory_plan {
    size_t struct_size;
    uint32_t n_ctx;          /* as asked for, or what 0 stands for */
    uint64_t file_bytes;     /* size of the file; what is mapped of it can be read again at any time */
    uint64_t weight_bytes;   /* weights that are copied out of the file */
    uint64_t cache_bytes;    /* caches, recurrent state, pages of the n-gram table */
    uint64_t compute_bytes;  /* compute buffers */
    uint64_t device_bytes;   /* of the last three, on the accelerator */
    uint64_t device_free_bytes;
} assay_memory_plan;

typedef struct assay_model_settings {
    size_t struct_size;    /* sizeof(assay_model_settings), for ABI growth */
    bool use_mmap;         /* map the weights instead of reading them (default true) */
    int32_t n_gpu_layers;  /* layers on the first accelerator; 0 = CPU only */
} assay_model_settings;

typedef struct assay_session_settings {
    size_t struct_size;
    uint32_t n_ctx;        /* cells for each sequence when split, for all together when unified */
    uint32_t n_seq;        /* sequences (slots) */
    uint32_t n_ubatch;     /* most tokens of one graph evaluation */
    uint32_t n_threads;    /* generation */
    uint32_t n_threads_batch; /* prefill */
    int32_t kv_type;       /* enum assay_kv_type */
    bool kv_unified;       /* one stream of cells shared by all sequences */
    bool flash_attention;  /* default true; one fused operator instead of several, needed for q8_0 (llama family) */
    /* From here on qwen4exp only. */
    bool reserved_layout;  /* unified: a sequence takes cells of its own stretch (n_ctx / n_seq) only */
    bool bucket_policy;    /* blocks of sparse attention by position bucket, as the forks have it, not by rank */
    bool plain_operators;  /* only operators that every back end has; same results */
    uint32_t n_rollback;   /* tokens at the end of a sequence that can be removed again; n_draft raises it */
    uint32_t n_draft;      /* most tokens drafted at a time, 0 to 6; 0: no draft cache */
    int32_t draft_kv_type; /* enum assay_kv_type of the draft cache */
    uint32_t n_draft_vocab; /* the draft chooses among the first ids of the vocabulary; 0: among all */
    uint64_t ple_cache_bytes; /* decoded pages of the n-gram table, default 64 MiB */
    uint64_t strip_bytes;  /* about so much for gathered rows and scores of the queries at a time, default 64 MiB */
} assay_session_settings;

/* One batch. Arrays have n entries; logits[i] != 0 asks for the row of token i. */
typedef struct assay_batch {
    uint32_t n;
    const assay_token *tokens;
    const int32_t *positions;
    const int32_t *seq_ids;
    const uint8_t *logits;
} assay_batch;

/* A batch with embeddings (the rows of an image) and 2-D positions; qwen4exp. */
typedef struct assay_rows {
    size_t struct_size;
    uint32_t n;
    uint32_t n_axes;          /* 1: text; 3: t, y, x; 4: the four rows of M-RoPE, the last of which is ignored */
    const assay_token *tokens; /* [n]; -1: the next row of embeddings stands here */
    const float *embeddings;  /* [n_embd] for each -1, one after the other; may be NULL without any */
    const int32_t *positions; /* [n_axes][n]; cells of an image at t = P: (P, P + row, P + column) */
    const int32_t *seq_ids;
    const uint8_t *logits;
} assay_rows;

/* Work counters: exact for one request at a time and for pinned batch schedules. */
typedef struct assay_work {
    size_t struct_size;
    uint64_t n_decode_calls;
    uint64_t n_graphs;          /* graph evaluations (ubatches) */
    uint64_t n_graph_reuses;    /* evaluations that reused the previous graph */
    uint64_t n_graph_nodes;     /* sum over evaluations */
    uint64_t n_flops;           /* of matrix products, attention and delta nets; a multiply-add is two */
    uint64_t n_weight_bytes_read; /* weight bytes that the graphs read (experts: as many as the tokens can choose) */
    uint64_t n_cells_visited;   /* cells scanned on the host for placement, edits and masks */
    uint64_t n_mapping_steps;   /* entries of index and mask inputs that the host wrote */
    uint64_t n_allocations;     /* compute buffers (re)allocated */
    uint64_t n_tokens_evaluated;
    /* qwen4exp */
    uint64_t n_runs_guarded;    /* runs (tokens of one sequence in a ubatch) by the route of their selection */
    uint64_t n_runs_general;
    uint64_t n_runs_masked;
    uint64_t n_scans;           /* fall-backs to a scan of the cells */
    uint64_t n_ple_rows;        /* rows of the n-gram table asked for */
    uint64_t n_ple_misses;      /* of these, rows read from the file */
    uint64_t n_drafted;
    uint64_t n_accepted;
} assay_work;

ASSAY_API assay_model_settings assay_model_defaults(void);
ASSAY_API assay_session_settings assay_session_defaults(void);

/* One line of JSON: engine version, ABI, ggml version and commit, back ends, compiled CPU
 * features, compiler, faults and layout salt compiled in. Static storage. */
ASSAY_API const char *assay_build_info(void);

/* Reads the header of the file, allocates no weight and no cache, and refuses what assay_model_load and
 * assay_session_new would refuse. n_ctx 0 stands for the model's context, at most 4096. */
ASSAY_API int assay_plan_memory(const char *path, const assay_model_settings *model_settings,
                                const assay_session_settings *session_settings, assay_memory_plan *plan,
                                char *err, size_t err_size);

ASSAY_API int assay_model_load(const char *path, const assay_model_settings *settings,
                               assay_model **model, char *err, size_t err_size);
ASSAY_API void assay_model_free(assay_model *model);

/* JSON with architecture, name, n_vocab, n_ctx_train, n_embd, n_layer, n_head, n_head_kv, n_params,
 * size_bytes, file_type, tensor type counts, tokenizer kind, bos/eos/eot ids and add_bos.
 * Lives as long as the model. */
ASSAY_API const char *assay_model_info(const assay_model *model);
/* The chat template stored in the file, or NULL. */
ASSAY_API const char *assay_model_chat_template(const assay_model *model);
ASSAY_API int32_t assay_model_n_vocab(const assay_model *model);
ASSAY_API int32_t assay_model_n_ctx_train(const assay_model *model);
/* -1 where the file names none. */
ASSAY_API assay_token assay_model_bos(const assay_model *model);
ASSAY_API assay_token assay_model_eos(const assay_model *model);
ASSAY_API bool assay_model_add_bos(const assay_model *model);
/* True for every token that ends a reply (eos, eot, eom). */
ASSAY_API bool assay_model_is_end(const assay_model *model, assay_token token);

/* Text to ids. parse_special: special tokens in the text become their ids, else their bytes.
 * add_special: prepend bos where the file asks for it. *n_tokens: in capacity, out the count; when the
 * capacity is too small nothing is written past it, *n_tokens is the need and ASSAY_FULL is returned. */
ASSAY_API int assay_tokenize(const assay_model *model, const char *text, size_t text_size,
                             bool add_special, bool parse_special, assay_token *tokens,
                             size_t *n_tokens, char *err, size_t err_size);
/* The exact bytes of one token, possibly part of a UTF-8 character. render_special: special tokens
 * give their text, else no bytes. Returned bytes live as long as the model. */
ASSAY_API int assay_token_bytes(const assay_model *model, assay_token token, bool render_special,
                                const char **bytes, size_t *size);

ASSAY_API int assay_session_new(const assay_model *model, const assay_session_settings *settings,
                                assay_session **session, char *err, size_t err_size);
ASSAY_API void assay_session_free(assay_session *session);
/* Bytes of caches and compute buffers of this session. */
ASSAY_API uint64_t assay_session_cache_bytes(const assay_session *session);
ASSAY_API uint64_t assay_session_compute_bytes(const assay_session *session);

/* Evaluates the batch in ubatches. The positions of a sequence go on from its last one, in the order of the
 * batch (qwen4exp: they rise, and may leave gaps); an empty sequence may begin anywhere. On ASSAY_FULL, ASSAY_INVALID and ASSAY_CANCELLED the cells that the call
 * added are removed again. cancel may be NULL. */
ASSAY_API int assay_decode(assay_session *session, const assay_batch *batch, const volatile int *cancel,
                           char *err, size_t err_size);
/* The same for rows. Coordinates (t, y, x) rise within a sequence, compared from the left. */
ASSAY_API int assay_decode_rows(assay_session *session, const assay_rows *rows, const volatile int *cancel,
                                char *err, size_t err_size);
/* The n_vocab logits of token i of the last batch (i = index in the batch), or NULL if not asked for. */
ASSAY_API const float *assay_logits(const assay_session *session, uint32_t i);

/* Speculative decoding with the draft block (sessions with n_draft > 0). `last` is a token that was chosen but not
 * decoded yet. A draft session shows every decoded batch to the draft block by itself.
 *
 * propose: up to n greedy drafts after `last`; stops where the best one's probability is below p_min (0: never).
 * verify: decodes `last` and drafts, logits of each row; until accept, the sequence takes nothing else.
 * accept: keeps the first n_keep tokens of the verified ones (1 or more) and takes the others back.
 * round: all three with greedy acceptance over the whole vocabulary. Emits 1 to min(depth, n_left - 1) + 1 tokens,
 * the last of which is the next `last`; tokens and drafts have room for depth + 1. */
ASSAY_API int assay_draft_propose(assay_session *session, int32_t seq, assay_token last, uint32_t n, float p_min,
                                  assay_token *drafts, uint32_t *n_drafts, char *err, size_t err_size);
ASSAY_API int assay_draft_verify(assay_session *session, int32_t seq, const assay_token *tokens, uint32_t n,
                                 const volatile int *cancel, char *err, size_t err_size);
ASSAY_API int assay_draft_accept(assay_session *session, int32_t seq, uint32_t n_keep, char *err, size_t err_size);
typedef struct assay_draft_round_result {
    size_t struct_size;
    uint32_t n_tokens;
    uint32_t n_drafted;
    uint32_t n_accepted;
} assay_draft_round_result;
ASSAY_API int assay_draft_round(assay_session *session, int32_t seq, assay_token last, uint32_t n_left, uint32_t depth,
                                float p_min, const volatile int *cancel, assay_token *tokens, assay_token *drafts,
                                assay_draft_round_result *result, char *err, size_t err_size);

/* Sequences: positions [p0, p1), p1 < 0 = to the end. What qwen4exp's recurrent state cannot do is ASSAY_UNSUPPORTED
 * and changes nothing: removal in the middle, removal of more than the last n_rollback tokens but not all, a second
 * removal before there are new tokens, copies of a part, shifts. A copy needs a target without positions in that range;
 * unified sessions share the cells, split ones copy the rows (ASSAY_FULL where there is no room). */
ASSAY_API int assay_seq_remove(assay_session *session, int32_t seq, int32_t p0, int32_t p1,
                               char *err, size_t err_size);
ASSAY_API int assay_seq_copy(assay_session *session, int32_t src, int32_t dst, int32_t p0, int32_t p1,
                             char *err, size_t err_size);
ASSAY_API int assay_seq_keep(assay_session *session, int32_t seq, char *err, size_t err_size);
/* Adds delta to the positions (re-rotates the keys); llama family only. Refused where it would pass positions
 * that stay or go below 0 (ASSAY_INVALID), and for cells shared with another sequence (ASSAY_UNSUPPORTED). */
ASSAY_API int assay_seq_shift(assay_session *session, int32_t seq, int32_t p0, int32_t p1, int32_t delta,
                              char *err, size_t err_size);
/* Largest position of the sequence, -1 when empty. */
ASSAY_API int32_t assay_seq_last(const assay_session *session, int32_t seq);
ASSAY_API uint32_t assay_seq_cells(const assay_session *session, int32_t seq);

/* State of one sequence: self-describing, bound to the model and the cache layout. */
ASSAY_API size_t assay_state_size(const assay_session *session, int32_t seq);
ASSAY_API int assay_state_save(const assay_session *session, int32_t seq, void *data, size_t size,
                               size_t *written, char *err, size_t err_size);
ASSAY_API int assay_state_restore(assay_session *session, int32_t seq, const void *data, size_t size,
                                  char *err, size_t err_size);

/* Fills an empty sequence with n zero cells at positions 0..n-1, outside any timing. */
ASSAY_API int assay_fill_zero(assay_session *session, int32_t seq, uint32_t n, char *err, size_t err_size);

/* Named internal tensors of the trunk in each following decode; qwen4exp. names: comma separated, a name that ends
 * with '*' stands for all that begin so. Names: embedding, ple.rows (i64), ple.embedding, residual.N, mixed.N (input of
 * attention or delta net), attended.N, experts.N (i32, chosen), selected.N (i32, kept blocks of sparse attention),
 * and with drafts draft.logits (which draft.residual comes with) of the rows that the draft block is shown.
 * Past max_bytes a decode goes on, and what is left out has no data. Capturing changes no result. */
ASSAY_API int assay_capture_start(assay_session *session, const char *names, uint64_t max_bytes, char *err,
                                  size_t err_size);
ASSAY_API void assay_capture_stop(assay_session *session);
enum assay_capture_type { ASSAY_CAPTURE_F32 = 0, ASSAY_CAPTURE_I32 = 1, ASSAY_CAPTURE_I64 = 2 };
typedef struct assay_captured {
    size_t struct_size;
    const char *name;
    int32_t type;         /* enum assay_capture_type */
    uint32_t ubatch;      /* of the decode, from 0 */
    int64_t shape[4];     /* first = fastest */
    const void *data;     /* NULL where max_bytes was reached; lives until the next decode */
    uint64_t size_bytes;
} assay_captured;
/* Tensors of the last decode, in the order of the ubatches and, in each, of the computation. */
ASSAY_API uint32_t assay_capture_count(const assay_session *session);
ASSAY_API int assay_capture_get(const assay_session *session, uint32_t i, assay_captured *captured, char *err,
                                size_t err_size);

/* The norm that the graphs use, over n_rows made-up rows, against double precision: the worst absolute error (infinite
 * for a value that is not finite) and the time of one computation. */
ASSAY_API int assay_norm_check(uint32_t n_rows, uint32_t width, bool on_accelerator, double *worst_error,
                               uint64_t *elapsed_ns, char *err, size_t err_size);

/* JSON: bytes of caches and compute buffers; for qwen4exp also the reasons of the routes, the use of the n-gram table and
 * how many tokens each sequence can take back. Lives until the next call. */
ASSAY_API const char *assay_session_info(assay_session *session);
ASSAY_API void assay_work_read(const assay_session *session, assay_work *work);
ASSAY_API void assay_work_reset(assay_session *session);

#ifdef __cplusplus
}
#endif
#endif
