#include "connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <cstdio>
#include <vector>

#include "errors.h"
#include "log.h"

namespace assay::server::http {
namespace {

std::string_view reason(int status) {
    return beast::http::obsolete_reason(static_cast<beast::http::status>(status));
}

Reply refusal(int status, const std::string& message) {
    Reply reply;
    reply.status = status;
    reply.body = error_body(ApiError(status, "invalid_request_error", message));
    return reply;
}

}  // namespace

void Connection::arm(Wait wait, Clock::duration time) {
    waiting_for_ = wait;
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this(), wait](error_code error) {
        if (!error && self->waiting_for_ == wait) self->on_time(wait);
    });
}

void Connection::on_time(Wait wait) {
    waiting_for_ = Wait::none;
    if (wait == Wait::head || wait == Wait::body) {
        // The pending read ends with an error and is answered there.
        is_timed_out_ = true;
        error_code ignored;
        socket_.cancel(ignored);
    } else if (wait == Wait::write) {
        drop("the client reads nothing");
    } else {
        close();
    }
}

void Connection::next_request() {
    parser_.reset();
    exchange_.reset();
    is_answering_ = is_stream_ = is_complete_ = is_timed_out_ = false;
    if (shared_.is_closing) {
        close();
    } else if (buffer_.size() > 0 && !is_reading_) {
        read_head();
    } else {
        arm(Wait::idle, shared_.limits.idle_time);
        // A request that was sent ahead is here already; the read that waits for more holds the buffer.
        error_code ignored;
        if (buffer_.size() > 0) socket_.cancel(ignored);
        read_more();
    }
}

// Reads outside of a request: its first bytes, or the end of a client that waits for its answer.
void Connection::read_more() {
    if (is_reading_ || buffer_.size() >= shared_.limits.pipelined_bytes) return;
    is_reading_ = true;
    socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, size_t n_bytes) {
        self->is_reading_ = false;
        self->buffer_.commit(n_bytes);
        const bool is_woken = error == asio::error::operation_aborted && self->buffer_.size() > 0;
        if (error && !is_woken) {
            if (self->is_ending_) return;
            if (self->is_answering_) self->client_gone();
            else self->close();
        } else if (self->is_ending_) {
            return;
        } else if (self->is_answering_) {
            self->read_more();
        } else if (self->waiting_for_ == Wait::idle) {
            self->read_head();
        }
    });
}

void Connection::read_head() {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(shared_.limits.header_bytes));
    parser_->body_limit(shared_.limits.body_bytes);
    arm(Wait::head, shared_.limits.header_time);
    beast::http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
        self->disarm();
        self->on_head(error);
    });
}

void Connection::on_head(error_code error) {
    received_ = Clock::now();
    request_ = {};
    if (error) return refuse(error);
    const auto& head = parser_->get();
    const std::string_view target = head.target();
    const size_t mark = target.find('?');
    request_.method = head.method_string();
    request_.path = target.substr(0, mark);
    if (mark != std::string_view::npos) request_.query = target.substr(mark + 1);
    request_.authorization = head[beast::http::field::authorization];
    request_.api_key = head["X-Api-Key"];
    keep_alive_ = parser_->keep_alive() && !shared_.is_closing;
    if (const auto refused = shared_.check(request_)) {
        // Without its body, the next request could not be found in the stream.
        if (!parser_->is_done()) keep_alive_ = false;
        is_answering_ = true;
        return send_reply(*refused);
    }
    if (parser_->is_done()) return on_body({});
    if (beast::iequals(head[beast::http::field::expect], "100-continue") && buffer_.size() == 0) {
        static constexpr std::string_view interim = "HTTP/1.1 100 Continue\r\n\r\n";
        arm(Wait::body, shared_.limits.body_time);
        asio::async_write(socket_, asio::buffer(interim), [self = shared_from_this()](error_code failed, size_t) {
            if (failed) self->close();
            else self->read_body();
        });
        return;
    }
    arm(Wait::body, shared_.limits.body_time);
    read_body();
}

void Connection::read_body() {
    beast::http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
        self->disarm();
        self->on_body(error);
    });
}

void Connection::on_body(error_code error) {
    if (error) return refuse(error);
    request_.body = std::move(parser_->get().body());
    is_answering_ = true;
    hand_over();
    read_more();
}

// A request that cannot be read is answered where the client may still listen.
void Connection::refuse(error_code error) {
    namespace fault = beast::http;
    Reply reply;
    if (is_timed_out_) {
        reply = refusal(408, "the request did not arrive in time");
    } else if (error == fault::error::header_limit || error == fault::error::buffer_overflow) {
        reply = refusal(431,
                        "the head of the request is larger than " + std::to_string(shared_.limits.header_bytes) + " bytes");
    } else if (error == fault::error::body_limit) {
        reply = refusal(413,
                        "the body of the request is larger than " + std::to_string(shared_.limits.body_bytes) + " bytes");
    } else if (error != fault::error::end_of_stream && error != fault::error::partial_message &&
               error.category() == fault::make_error_code(fault::error::bad_method).category()) {
        reply = refusal(400, "not an HTTP/1.1 request: " + error.message());
    } else {
        return close();  // the client is gone
    }
    keep_alive_ = false;
    is_answering_ = true;
    send_reply(reply);
}

void Connection::hand_over() {
    exchange_ = std::make_shared<ExchangeImpl>(shared_, weak_from_this());
    asio::post(shared_.handlers, [&handler = shared_.handler, request = std::move(request_), exchange = exchange_] {
        handler(request, exchange);
    });
    request_ = {};
    request_.method = parser_->get().method_string();
    request_.path = std::string_view(parser_->get().target()).substr(0, parser_->get().target().find('?'));
}

void Connection::send_reply(const Reply& reply) {
    if (!is_open() || is_stream_ || is_complete_) return;
    status_ = reply.status;
    std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " " + std::string(reason(reply.status)) +
                       "\r\nServer: assay\r\nContent-Type: " + reply.content_type +
                       "\r\nContent-Length: " + std::to_string(reply.body.size()) +
                       "\r\nConnection: " + (keep_alive_ ? "keep-alive" : "close") + "\r\n";
    if (!reply.allow.empty()) text += "Allow: " + reply.allow + "\r\n";
    if (reply.status == 401) text += "WWW-Authenticate: Bearer\r\n";
    text += "\r\n";
    text += reply.body;
    is_complete_ = true;
    queue(std::move(text));
}

void Connection::send_events(std::string data) {
    if (!is_open() || is_complete_) return;
    std::string text;
    if (!is_stream_) {
        is_stream_ = true;
        status_ = 200;
        is_chunked_ = parser_->get().version() >= 11;
        if (!is_chunked_) keep_alive_ = false;
        text = "HTTP/1.1 200 OK\r\nServer: assay\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
               "X-Accel-Buffering: no\r\n";
        text += is_chunked_ ? "Transfer-Encoding: chunked\r\n" : "";
        text += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
    }
    if (is_chunked_) {
        std::array<char, 20> size{};
        const int n = std::snprintf(size.data(), size.size(), "%zx\r\n", data.size());
        text.append(size.data(), static_cast<size_t>(n));
    }
    text += data;
    if (is_chunked_) text += "\r\n";
    queue(std::move(text));
    if (n_unsent_ > shared_.limits.unread_bytes) drop("the client left more unread than it may");
}

void Connection::finish_stream() {
    if (!is_open() || is_complete_) return;
    is_complete_ = true;
    if (is_chunked_) queue("0\r\n\r\n");
    else if (!is_writing_) answer_written();
}

void Connection::queue(std::string data) {
    n_unsent_ += data.size();
    unsent_.push_back(std::move(data));
    if (!is_writing_) write();
}

void Connection::write() {
    std::vector<asio::const_buffer> pieces;
    for (size_t i = 0; i < unsent_.size() && i < 16; ++i) {
        const std::string& piece = unsent_[i];
        const size_t skip = i == 0 ? n_front_sent_ : 0;
        pieces.emplace_back(piece.data() + skip, piece.size() - skip);
    }
    is_writing_ = true;
    arm(Wait::write, shared_.limits.write_time);
    socket_.async_write_some(pieces, [self = shared_from_this()](error_code error, size_t n_bytes) {
        self->is_writing_ = false;
        self->disarm();
        if (error) return self->client_gone();
        self->n_unsent_ -= n_bytes;
        n_bytes += self->n_front_sent_;
        while (!self->unsent_.empty() && n_bytes >= self->unsent_.front().size()) {
            n_bytes -= self->unsent_.front().size();
            self->unsent_.pop_front();
        }
        self->n_front_sent_ = n_bytes;
        if (!self->unsent_.empty()) self->write();
        else if (self->is_complete_) self->answer_written();
    });
}

void Connection::answer_written() {
    log_answer();
    if (exchange_ != nullptr) exchange_->complete();
    if (!keep_alive_ || shared_.is_closing) return linger();
    next_request();
}

// Closing while unread bytes lie in the socket would reset it and could destroy the answer on its way.
void Connection::linger() {
    is_ending_ = true;
    is_answering_ = false;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    socket_.cancel(ignored);
    arm(Wait::linger, std::chrono::seconds(1));
    discarded_.resize(16384);
    struct Discard {
        std::shared_ptr<Connection> self;
        void operator()(error_code error, size_t) {
            if (error && error != asio::error::operation_aborted) return self->close();
            if (!self->is_open()) return;
            const auto buffer = asio::buffer(self->discarded_);
            tcp::socket& socket = self->socket_;
            socket.async_read_some(buffer, Discard{std::move(self)});
        }
    };
    socket_.async_read_some(asio::buffer(discarded_), Discard{shared_from_this()});
}

void Connection::drop(std::string_view why) {
    log_line("warning", "client_dropped", {{"message", std::string(why)}, {"unsent_bytes", static_cast<int64_t>(n_unsent_)}});
    client_gone();
}

void Connection::client_gone() {
    if (is_answering_ && !is_ending_) {
        status_ = 499;  // as others log a client that went away; never sent
        log_answer();
    }
    if (exchange_ != nullptr) exchange_->client_gone();
    close();
}

void Connection::close() {
    disarm();
    is_answering_ = false;
    is_ending_ = true;
    if (exchange_ != nullptr) exchange_->client_gone();
    error_code ignored;
    socket_.close(ignored);
}

void Connection::log_answer() const {
    const double spent = std::chrono::duration<double, std::milli>(Clock::now() - received_).count();
    log_line("info", "request",
             {{"method", request_.method}, {"path", request_.path}, {"status", int64_t{status_}}, {"ms", spent}});
}

}  // namespace assay::server::http
