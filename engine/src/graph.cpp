#include "graph.h"

#include "failure.h"

namespace assay {

ggml_cgraph* open_graph(ContextHandle& context, size_t n_nodes) {
    // Leafs (inputs, weights, cache rows) need descriptions too; a graph has fewer of them than nodes.
    const ggml_init_params params = {2 * n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false),
                                     nullptr, true};
    need_memory(params.mem_size);
    context.reset(ggml_init(params));
    if (!context) throw Failure(ASSAY_MEMORY, "cannot allocate a graph of " + std::to_string(n_nodes) + " nodes");
    return ggml_new_graph_custom(context.get(), n_nodes, false);
}

ggml_tensor* new_input(ggml_context* context, ggml_type type, const char* name, int64_t ne0, int64_t ne1, int64_t ne2,
                       int64_t ne3) {
    ggml_tensor* input = ggml_new_tensor_4d(context, type, ne0, ne1, ne2, ne3);
    ggml_set_input(input);
    ggml_set_name(input, name);
    return input;
}

}  // namespace assay
