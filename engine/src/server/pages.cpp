// What the GET routes show of the server, its model and its slots.
#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "engine.h"
#include "json_writer.h"
#include "render.h"
#include "routes.h"
#include "text_output.h"

namespace assay::server {
namespace {

void write_special(JsonWriter& out, std::string_view name, const Model& model, int32_t token) {
    out.key(name);
    if (token < 0) out.text("");
    else out.text(valid_utf8(model.bytes(token, true)));
}

}  // namespace

// All but the last members of /props, which change while the server works; the object stays open.
std::string Routes::fixed_props(const Ready& ready, const Session& session, const assay_memory_plan& plan) const {
    const Model& model = ready.model;
    JsonWriter out;
    out.open_object();
    GenerationSettings defaults;
    defaults.sampling.seed = settings_.seed;
    out.key("default_generation_settings").open_object();
    write_settings(out.key("params"), defaults, defaults.sampling);
    out.key("n_ctx").integer(ready.context.n_ctx).close_object();
    out.key("total_slots").integer(settings_.n_slots);
    out.key("model_alias").text(valid_utf8(settings_.alias)).key("model_path").text(valid_utf8(settings_.model));
    out.key("model_ftype").raw(json_member(model.info(), "file_type"));
    out.key("modalities").open_object().key("vision").boolean(false).key("audio").boolean(false).close_object();
    out.key("endpoint_slots").boolean(true).key("endpoint_props").boolean(false).key("endpoint_metrics").boolean(true);
    out.key("chat_template").text(valid_utf8(model.chat_template()));
    out.key("chat_template_error").text(valid_utf8(ready.context.chat_template_error));
    write_special(out, "bos_token", model, model.bos());
    write_special(out, "eos_token", model, model.eos());
    out.key("build_info").text(valid_utf8(assay_build_info())).key("build").raw(assay_build_info());
    out.key("n_ctx").integer(ready.context.n_ctx).key("n_ctx_train").integer(model.n_ctx_train());
    out.key("kv_type").text(name_of_kv_type(settings_.kv_type)).key("kv_unified").boolean(settings_.kv_unified);
    out.key("flash_attention").boolean(settings_.flash_attention);
    out.key("ubatch").integer(settings_.n_ubatch).key("threads").integer(settings_.n_threads);
    out.key("threads_batch").integer(settings_.n_threads_batch).key("n_gpu_layers").integer(settings_.n_gpu_layers);
    out.key("mmap").boolean(settings_.use_mmap);
    out.key("cache_bytes").integer(session.cache_bytes()).key("compute_bytes").integer(session.compute_bytes());
    out.key("memory_plan").open_object().key("weight_bytes").integer(plan.weight_bytes).key("cache_bytes").integer(plan.cache_bytes);
    out.key("compute_bytes").integer(plan.compute_bytes).key("device_bytes").integer(plan.device_bytes);
    out.key("file_bytes").integer(plan.file_bytes).close_object();
    out.key("model_info").raw(model.info());
    out.key("drafts").open_object().key("n_draft").integer(settings_.n_draft);
    out.key("kv_type").text(name_of_kv_type(settings_.draft_kv_type)).key("vocabulary").integer(settings_.n_draft_vocab);
    out.close_object().key("ple_cache_mib").integer(settings_.ple_cache_mib);
    return out.take();
}

std::string Routes::props(const Ready& ready) const {
    const std::string session = ready.scheduler.state().session_info;
    return ready.fixed_props + ",\"session\":" + session + "}";
}

std::string Routes::models(const Ready& ready) const {
    const std::string info = ready.model.info();
    JsonWriter out;
    out.open_object().key("object").text("list").key("data").open_array().open_object();
    out.key("id").text(valid_utf8(settings_.alias)).key("object").text("model");
    out.key("created").integer(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
    out.key("owned_by").text("assay").key("meta").open_object();
    out.key("n_vocab").integer(ready.model.n_vocab()).key("n_ctx").integer(ready.context.n_ctx);
    out.key("n_ctx_train").integer(ready.model.n_ctx_train());
    out.key("n_embd").raw(json_member(info, "n_embd")).key("n_params").raw(json_member(info, "n_params"));
    out.key("size").raw(json_member(info, "size_bytes")).key("ftype").raw(json_member(info, "file_type"));
    return out.close_object().close_object().close_array().close_object().take();
}

// Counts and settings. Never text or token ids: whoever reads this may not be who sent the prompt.
std::string Routes::slots(const Ready& ready) const {
    const SchedulerState state = ready.scheduler.state();
    JsonWriter out;
    out.open_array();
    for (const SlotView& slot : state.slots) {
        out.open_object().key("id").integer(slot.id).key("n_ctx").integer(ready.context.n_ctx);
        out.key("speculative").boolean(settings_.n_draft > 0).key("is_processing").boolean(slot.is_processing);
        out.key("n_cells").integer(slot.n_cells);
        if (slot.job != nullptr) {
            out.key("id_task").integer(slot.job->id).key("n_prompt_tokens").integer(slot.n_prompt);
            out.key("n_prompt_tokens_processed").integer(std::max(0, slot.n_prompt_done - slot.n_prompt_cached));
            out.key("n_prompt_tokens_cache").integer(slot.n_prompt_cached);
            GenerationSettings settings = slot.job->settings;
            settings.stop.clear();  // text of the one who asked
            SamplingSettings sampling = settings.sampling;
            sampling.seed = slot.seed;
            write_settings(out.key("params"), settings, sampling);
            out.key("next_token").open_array().open_object();
            out.key("has_next_token").boolean(slot.is_generating).key("has_new_line").boolean(slot.has_new_line);
            out.key("n_remain").integer(slot.n_remaining).key("n_decoded").integer(slot.n_predicted);
            out.close_object().close_array();
        }
        out.close_object();
    }
    return out.close_array().take();
}

std::string Routes::metrics(const Ready& ready) const {
    const SchedulerState state = ready.scheduler.state();
    const Totals& totals = state.totals;
    std::string out;
    const auto write = [&](std::string_view name, std::string_view kind, std::string_view help, const std::string& value) {
        out += "# HELP " + std::string(name) + " " + std::string(help) + "\n# TYPE " + std::string(name) + " " + std::string(kind) + "\n" +
               std::string(name) + " " + value + "\n";
    };
    const auto count = [&](std::string_view name, std::string_view help, uint64_t value) { write(name, "counter", help, std::to_string(value)); };
    const auto seconds = [&](std::string_view name, std::string_view help, double value) {
        write(name, "counter", help, JsonWriter().real(value).take());
    };
    const auto gauge = [&](std::string_view name, std::string_view help, double value) {
        write(name, "gauge", help, JsonWriter().real(value).take());
    };
    const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
    // llama-server's names, so that what reads its metrics reads these.
    count("llamacpp:prompt_tokens_total", "Prompt tokens evaluated, without cached ones.", totals.n_prompt_tokens);
    count("llamacpp:prompt_tokens_cached_total", "Prompt tokens reused from the cache.", totals.n_prompt_cached);
    seconds("llamacpp:prompt_seconds_total", "Time from slot start to first token, summed over requests.", totals.prompt_s);
    count("llamacpp:tokens_predicted_total", "Tokens generated.", totals.n_predicted_tokens);
    seconds("llamacpp:tokens_predicted_seconds_total", "Time from first to last token, summed over requests.", totals.predicted_s);
    count("llamacpp:n_decode_total", "Batches decoded.", totals.n_decode);
    count("llamacpp:n_tokens_max", "Most tokens that one slot held.", totals.n_tokens_max);
    gauge("llamacpp:prompt_tokens_seconds", "Mean prefill rate in tokens/s.", ratio(static_cast<double>(totals.n_prompt_tokens), totals.prompt_s));
    gauge("llamacpp:predicted_tokens_seconds", "Mean generation rate in tokens/s.",
          ratio(static_cast<double>(totals.n_predicted_tokens - std::min(totals.n_predicted_tokens, totals.n_jobs_done)), totals.predicted_s));
    gauge("llamacpp:requests_processing", "Requests in a slot.", static_cast<double>(state.n_processing));
    gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", static_cast<double>(state.n_waiting));
    gauge("llamacpp:n_busy_slots_per_decode", "Mean number of slots in a batch.",
          ratio(static_cast<double>(totals.n_busy_slots), static_cast<double>(totals.n_decode)));
    count("assay:tokens_drafted_total", "Tokens drafted.", totals.n_drafted);
    count("assay:tokens_drafted_accepted_total", "Drafts that were what the request chose.", totals.n_accepted);
    count("assay:requests_done_total", "Requests answered to their end.", totals.n_jobs_done);
    count("assay:requests_cancelled_total", "Requests whose client went away.", totals.n_jobs_cancelled);
    count("assay:requests_failed_total", "Requests that ended with an error in work.", totals.n_jobs_failed);
    count("assay:graphs_total", "Graph evaluations.", state.work.n_graphs);
    count("assay:graph_reuses_total", "Evaluations that reused the previous graph.", state.work.n_graph_reuses);
    count("assay:graph_nodes_total", "Graph nodes evaluated.", state.work.n_graph_nodes);
    count("assay:flops_total", "Operations of matrix products.", state.work.n_flops);
    count("assay:weight_bytes_read_total", "Weight bytes that the graphs read.", state.work.n_weight_bytes_read);
    count("assay:cells_visited_total", "Cells scanned on the host.", state.work.n_cells_visited);
    count("assay:mapping_steps_total", "Host steps that build index and mask inputs.", state.work.n_mapping_steps);
    count("assay:allocations_total", "Compute buffers allocated.", state.work.n_allocations);
    count("assay:tokens_evaluated_total", "Tokens evaluated.", state.work.n_tokens_evaluated);
    return out;
}

}  // namespace assay::server
