#include "routes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine.h"
#include "errors.h"
#include "json_writer.h"
#include "log.h"
#include "slot_files.h"
#include "text_output.h"

namespace assay::server {
namespace {

using http::Exchange;
using http::Reply;
using http::Request;

struct Route {
    std::string_view path;  // a final * stands for a slot number
    std::string_view method;
    bool needs_key;
};

constexpr std::array routes{
    Route{"/health", "GET", false},          Route{"/v1/models", "GET", false},       Route{"/props", "GET", true},
    Route{"/slots", "GET", true},            Route{"/metrics", "GET", true},          Route{"/tokenize", "POST", true},
    Route{"/detokenize", "POST", true},      Route{"/apply-template", "POST", true},  Route{"/completion", "POST", true},
    Route{"/v1/completions", "POST", true},  Route{"/v1/chat/completions", "POST", true},
    Route{"/slots/*", "POST", true},         Route{"/test/image-completion", "POST", true},
};

constexpr std::string_view slot_prefix = "/slots/";

const Route* find_route(std::string_view path) {
    for (const Route& route : routes) {
        if (route.path == path) return &route;
        if (route.path.ends_with('*') && path.starts_with(route.path.substr(0, route.path.size() - 1))) return &route;
    }
    return nullptr;
}

Reply refusal(const ApiError& error) {
    Reply reply;
    reply.status = error.code;
    reply.body = error_body(error);
    return reply;
}

Reply json_reply(std::string body) {
    Reply reply;
    reply.body = std::move(body);
    return reply;
}

// The time does not depend on where the texts differ, only on the length of what the client sent.
bool is_equal(std::string_view given, std::string_view key) {
    unsigned difference = given.size() == key.size() ? 0 : 1;
    for (size_t i = 0; i < given.size(); ++i) {
        difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
    }
    return difference == 0;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

ApiError shutting_down() { return {503, "unavailable_error", "the server is shutting down"}; }

// Runs `work` and answers with what it throws.
template <typename Work>
void answer_errors(const std::shared_ptr<Exchange>& exchange, Work work) {
    try {
        work();
    } catch (const ApiError& error) {
        exchange->reply(refusal(error));
    } catch (const std::bad_alloc&) {
        exchange->reply(refusal(ApiError(500, "server_error", "the server is out of memory")));
    } catch (const std::exception& error) {
        log_line("error", "request_failed", {{"message", std::string(error.what())}});
        exchange->reply(refusal(ApiError(500, "server_error", error.what())));
    }
}

}  // namespace

void Routes::open(const Model& model, Scheduler& scheduler, const Session& session, const assay_memory_plan& plan) {
    RequestContext context{model, nullptr, {}, static_cast<int32_t>(scheduler.limits().n_ctx), static_cast<int32_t>(settings_.n_slots), settings_.seed};
    context.n_embd = settings_.test_images ? static_cast<int32_t>(model.image_width()) : 0;
    ready_ = std::make_unique<Ready>(Ready{model, scheduler, nullptr, std::move(context), {}, {}, {}});
    const std::string source = model.chat_template();
    if (source.empty()) {
        ready_->context.chat_template_error = "the model has no chat template; use /completion with a whole prompt";
    } else {
        try {
            ready_->chat_template = ChatTemplate::parse(source);
            ready_->context.chat_template = ready_->chat_template.get();
        } catch (const std::runtime_error& error) {
            ready_->context.chat_template_error = "the chat template of the model: " + std::string(error.what());
            log_line("warning", "chat_template_refused", {{"message", std::string(error.what())}});
        }
    }
    // A quoted string of the build line, without its quotes.
    const std::string version = json_member(assay_build_info(), "version");
    ready_->build = "assay";
    if (version.size() > 2 && version.front() == '"') ready_->build += "-" + version.substr(1, version.size() - 2);
    ready_->fixed_props = fixed_props(*ready_, session, plan);
    ready_->models = models(*ready_);
    is_ready_ = true;
}

bool Routes::is_authorized(const Request& head) const {
    if (settings_.api_key.empty()) return true;
    static constexpr std::string_view scheme = "bearer ";
    const std::string& given = head.authorization;
    const bool is_bearer = given.size() > scheme.size() && std::equal(scheme.begin(), scheme.end(), given.begin(), [](char a, char b) {
                               return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b + 32) : b);
                           });
    const std::string_view key = is_bearer ? std::string_view(given).substr(scheme.size()) : std::string_view(head.api_key);
    return is_equal(key, settings_.api_key);
}

std::optional<Reply> Routes::check(const Request& head) const {
    const Route* route = find_route(head.path);
    if ((route == nullptr || route->needs_key) && !is_authorized(head)) {
        return refusal(ApiError(401, "authentication_error", "Invalid API Key"));
    }
    if (route == nullptr) return refusal(ApiError(404, "not_found_error", "there is no route " + head.path));
    if (route->method != head.method) {
        Reply reply = refusal(ApiError(405, "invalid_request_error", head.path + " takes " + std::string(route->method) + ", not " + head.method));
        reply.allow = route->method;
        return reply;
    }
    if (!is_ready_) return refusal(ApiError(503, "unavailable_error", "Loading model"));
    if (route->method == "GET") return get(head.path, *ready_);
    return std::nullopt;
}

Reply Routes::get(const std::string& path, const Ready& ready) const {
    if (path == "/health") return json_reply(R"({"status":"ok"})");
    if (path == "/v1/models") return json_reply(ready.models);
    if (path == "/props") return json_reply(props(ready));
    if (path == "/slots") return json_reply(slots(ready));
    Reply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics(ready);
    return reply;
}

void Routes::handle(const Request& request, const std::shared_ptr<Exchange>& exchange) {
    answer_errors(exchange, [&] {
        const RequestContext& context = ready_->context;
        if (request.path == "/completion") {
            generate(Dialect::native, parse_completion(request.body, context), exchange);
        } else if (request.path == "/test/image-completion") {
            if (context.n_embd == 0) {
                throw ApiError(501, "not_supported_error", "no images: start the server of a qwen4exp model with `--test-images`");
            }
            generate(Dialect::native, parse_image_completion(request.body, context), exchange);
        } else if (request.path == "/v1/completions") {
            generate(Dialect::completion, parse_openai_completion(request.body, context), exchange);
        } else if (request.path == "/v1/chat/completions") {
            generate(Dialect::chat, parse_chat(request.body, context), exchange);
        } else if (request.path == "/tokenize") {
            exchange->reply(json_reply(tokenize(parse_tokenize(request.body))));
        } else if (request.path == "/detokenize") {
            const std::string text = valid_utf8(context.model.join(parse_detokenize(request.body, context.model)));
            exchange->reply(json_reply(JsonWriter().open_object().key("content").text(text).close_object().take()));
        } else if (request.path == "/apply-template") {
            const std::string text = valid_utf8(parse_apply_template(request.body, context));
            exchange->reply(json_reply(JsonWriter().open_object().key("prompt").text(text).close_object().take()));
        } else {
            act_on_slot(request, exchange);
        }
    });
}

void Routes::generate(Dialect dialect, GenerationRequest request, const std::shared_ptr<Exchange>& exchange) {
    const auto renderer = std::make_shared<Renderer>(dialect, ready_->model, settings_.alias, ready_->build, request);
    const auto job = std::make_shared<Job>();
    job->settings = std::move(request.settings);
    job->prompt = std::move(request.prompt);
    job->images = std::move(request.images);
    if (job->settings.stream) {
        const auto has_begun = std::make_shared<bool>(false);
        // The inference thread only hands the event over; text is made and sent on the connection thread.
        job->sink = [exchange, renderer, has_begun](JobEvent&& event) {
            exchange->post([exchange, renderer, has_begun, event = std::move(event)] {
                const auto send = [&](std::string frames) {
                    if (frames.empty()) return;
                    *has_begun = true;
                    exchange->events(std::move(frames));
                };
                if (const auto* token = std::get_if<TokenEvent>(&event)) {
                    send(renderer->frames(*token));
                } else if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
                    send(renderer->frames(*progress));
                } else if (const auto* end = std::get_if<EndEvent>(&event)) {
                    send(renderer->frames(*end));
                    exchange->finish();
                } else {
                    const ApiError& error = std::get<FailureEvent>(event).error;
                    if (!*has_begun) return exchange->reply(refusal(error));
                    exchange->events(event_frame(error_body(error)));
                    exchange->finish();
                }
            });
        };
    } else {
        job->sink = [exchange, renderer](JobEvent&& event) {
            if (auto* token = std::get_if<TokenEvent>(&event)) {
                renderer->keep(std::move(*token));
            } else if (const auto* end = std::get_if<EndEvent>(&event)) {
                exchange->post([exchange, renderer, end = *end] { exchange->reply(json_reply(renderer->body(end))); });
            } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
                exchange->reply(refusal(failure->error));
            }
        };
    }
    exchange->on_gone([&scheduler = ready_->scheduler, job] { scheduler.cancel(job); });
    ready_->scheduler.submit(job);
}

std::string Routes::tokenize(const TokenizeRequest& request) const {
    const Model& model = ready_->model;
    const std::vector<int32_t> tokens = model.tokenize(request.content, request.add_special, request.parse_special);
    JsonWriter out;
    out.open_object().key("tokens");
    if (!request.with_pieces) return out.integers(tokens).close_object().take();
    out.open_array();
    for (const int32_t token : tokens) {
        // A piece that is no text by itself is given as bytes.
        const std::string_view bytes = model.bytes(token, true);
        size_t n_invalid = 0;
        const std::string text = valid_utf8(bytes, &n_invalid);
        out.open_object().key("id").integer(token).key("piece");
        if (n_invalid == 0) {
            out.text(text);
        } else {
            out.open_array();
            for (const char byte : bytes) out.integer(static_cast<int>(static_cast<unsigned char>(byte)));
            out.close_array();
        }
        out.close_object();
    }
    return out.close_array().close_object().take();
}

void Routes::act_on_slot(const Request& request, const std::shared_ptr<Exchange>& exchange) {
    if (settings_.slot_save_path.empty()) {
        throw ApiError(501, "not_supported_error", "This server does not support slots action. Start it with `--slot-save-path`");
    }
    const std::string number = request.path.substr(slot_prefix.size());
    const bool is_number = !number.empty() && number.size() < 6 && number.find_first_not_of("0123456789") == std::string::npos;
    const int32_t id = is_number ? std::stoi(number) : -1;
    if (id < 0 || id >= static_cast<int32_t>(settings_.n_slots)) {
        throw ApiError::invalid("there is no slot '" + number + "'; this server has slots 0 to " + std::to_string(settings_.n_slots - 1));
    }
    if (request.query == "action=save") save_slot(id, parse_file_name(request.body), exchange);
    else if (request.query == "action=restore") restore_slot(id, parse_file_name(request.body), exchange);
    else if (request.query == "action=erase") erase_slot(id, exchange);
    else throw ApiError::invalid("a slot takes ?action=save, ?action=restore or ?action=erase");
}

void Routes::save_slot(int32_t id, const std::string& name, const std::shared_ptr<Exchange>& exchange) {
    const auto action = [folder = settings_.slot_save_path, name, exchange](Scheduler::IdleSlot& slot) {
        const auto start = std::chrono::steady_clock::now();
        answer_errors(exchange, [&] {
            if (std::any_of(slot.cells.begin(), slot.cells.end(), [](int32_t token) { return token < 0; })) {
                throw ApiError::invalid("the slot holds an image, which is not saved");
            }
            auto content = std::make_shared<SlotFile>(SlotFile{slot.cells, slot.session.save(slot.id)});
            // The disk must not hold up the inference thread.
            exchange->post_to_handler([folder, name, exchange, content, start, id = slot.id] {
                answer_errors(exchange, [&] {
                    const uint64_t n_written = write_slot_file(folder, name, *content);
                    JsonWriter out;
                    out.open_object().key("id_slot").integer(id).key("filename").text(valid_utf8(name));
                    out.key("n_saved").integer(content->tokens.size()).key("n_written").integer(n_written);
                    out.key("timings").open_object().key("save_ms").real(milliseconds_since(start)).close_object();
                    exchange->reply(json_reply(out.close_object().take()));
                });
            });
        });
    };
    ready_->scheduler.when_idle(id, action, [exchange] { exchange->reply(refusal(shutting_down())); });
}

void Routes::restore_slot(int32_t id, const std::string& name, const std::shared_ptr<Exchange>& exchange) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t n_read = 0;
    std::shared_ptr<SlotFile> content;
    try {
        content = std::make_shared<SlotFile>(read_slot_file(settings_.slot_save_path, name, &n_read));
    } catch (const std::runtime_error& error) {
        throw ApiError::invalid("unable to restore the slot from " + std::string(error.what()));
    }
    const auto n_vocab = ready_->model.n_vocab();
    const bool is_known = std::all_of(content->tokens.begin(), content->tokens.end(), [&](int32_t t) { return t >= 0 && t < n_vocab; });
    if (!is_known || content->tokens.size() >= ready_->scheduler.limits().n_ctx) {
        throw ApiError::invalid("unable to restore the slot from '" + name + "': it is of another model or does not fit the context (--ctx-size)");
    }
    const auto action = [name, exchange, content, start, n_read](Scheduler::IdleSlot& slot) {
        slot.cells.clear();
        Session::Outcome outcome = slot.session.remove(slot.id, 0);
        if (outcome.ok()) outcome = slot.session.restore(slot.id, content->state);
        if (outcome.ok() && slot.session.cells(slot.id) != content->tokens.size()) {
            outcome = {ASSAY_FILE, "its token ids and its cells do not match"};
        }
        if (!outcome.ok()) {
            slot.session.remove(slot.id, 0);
            exchange->reply(refusal(ApiError::invalid("unable to restore the slot from '" + name + "': " + outcome.message)));
            return;
        }
        slot.cells = content->tokens;
        JsonWriter out;
        out.open_object().key("id_slot").integer(slot.id).key("filename").text(valid_utf8(name));
        out.key("n_restored").integer(slot.cells.size()).key("n_read").integer(n_read);
        out.key("timings").open_object().key("restore_ms").real(milliseconds_since(start)).close_object();
        exchange->reply(json_reply(out.close_object().take()));
    };
    ready_->scheduler.when_idle(id, action, [exchange] { exchange->reply(refusal(shutting_down())); });
}

void Routes::erase_slot(int32_t id, const std::shared_ptr<Exchange>& exchange) {
    const auto action = [exchange](Scheduler::IdleSlot& slot) {
        const size_t n_erased = slot.cells.size();
        const Session::Outcome outcome = slot.session.remove(slot.id, 0);
        if (!outcome.ok()) return exchange->reply(refusal(ApiError(500, "server_error", outcome.message)));
        slot.cells.clear();
        JsonWriter out;
        out.open_object().key("id_slot").integer(slot.id).key("n_erased").integer(n_erased).close_object();
        exchange->reply(json_reply(out.take()));
    };
    ready_->scheduler.when_idle(id, action, [exchange] { exchange->reply(refusal(shutting_down())); });
}

}  // namespace assay::server
