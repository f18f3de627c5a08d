/* Block selection through a C interface, so that another language can drive this very library: tests compare its inputs
 * with an independent reference, and a check can hash what two builds hand to the same graphs. Nothing but qsa.h is
 * behind it. A call that fails returns a negative number; assay_qsa_error() says why. Not for several threads. */
#ifndef ASSAY_QSA_C_H
#define ASSAY_QSA_C_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_QSA_C __attribute__((visibility("default")))

typedef struct assay_qsa assay_qsa;

typedef struct {
    uint32_t n_cells, n_used, end;
    const int32_t *t, *y, *x;      /* [n_cells]; t = INT32_MAX: free */
    const uint64_t* sequences;     /* [n_cells, 4]: bit s of the 256 is sequence s, lowest word first */
} assay_qsa_cells;

typedef struct {
    uint32_t cell;
    int32_t t, y, x, fourth;
    int32_t is_image;
} assay_qsa_row;

/* policy: 0 rank, 1 bucket. NULL on failure. */
ASSAY_QSA_C assay_qsa* assay_qsa_new(uint32_t sequence, uint32_t ratio, int policy);
ASSAY_QSA_C void assay_qsa_free(assay_qsa* tracker);

ASSAY_QSA_C void assay_qsa_truncate(assay_qsa* tracker, int32_t t);
/* what: 0 copied, 1 restored, 2 removed, 3 failed. */
ASSAY_QSA_C int assay_qsa_changed(assay_qsa* tracker, int what, int32_t stale_from);
ASSAY_QSA_C void assay_qsa_computed(assay_qsa* tracker);

ASSAY_QSA_C int assay_qsa_select(assay_qsa* tracker, const assay_qsa_cells* cells, const assay_qsa_row* rows,
                                 uint32_t n_rows);
/* An input of the last selection by the name it has in qsa.h: own_cells, block_cells, block_at, visible_cells,
 * visible_blocks, tail_cells; block_bias, block_of_cell, cell_mask make the masks. Bytes, valid until the next call. */
ASSAY_QSA_C int64_t assay_qsa_input(assay_qsa* tracker, const char* name, const void** data);
/* A number of the last selection (n_own, n_blocks, n_queries, first_new_own, first_new_block, first_stale_block, route,
 * reason) or a counter (n_scans, n_recoveries, n_cells_visited, n_mapping_steps). */
ASSAY_QSA_C int64_t assay_qsa_number(const assay_qsa* tracker, const char* name);
ASSAY_QSA_C const char* assay_qsa_route(const assay_qsa* tracker);
ASSAY_QSA_C const char* assay_qsa_reason(const assay_qsa* tracker);
/* 1: the kept prefix equals one rebuilt from these cells; 0: it differs; 2: nothing is tracked. */
ASSAY_QSA_C int assay_qsa_compare_rebuilt(const assay_qsa* tracker, const assay_qsa_cells* cells);

ASSAY_QSA_C const char* assay_qsa_faults(void);
ASSAY_QSA_C const char* assay_qsa_path(void);
ASSAY_QSA_C const char* assay_qsa_error(void);

#ifdef __cplusplus
}
#endif
#endif
