// One connection of the HTTP server, and the answer to its request, on Boost.Beast.
#pragma once

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "http.h"

namespace assay::server::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

class Connection;
class ExchangeImpl;

// What all connections share; lives longer than they do.
struct Shared {
    Limits limits;
    Server::Check check;
    Server::Handler handler;
    // Before the context: what it still holds when it ends takes itself out of the set.
    std::set<Connection*> connections;
    bool is_closing = false;
    asio::io_context io{1};
    asio::thread_pool handlers{1};
};

// Everything here happens on the connection thread.
class Connection : public std::enable_shared_from_this<Connection> {
public:
    Connection(Shared& shared, tcp::socket socket) : shared_(shared), socket_(std::move(socket)), timer_(shared.io) {
        shared_.connections.insert(this);
    }
    ~Connection() { shared_.connections.erase(this); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    void start() {
        error_code ignored;
        socket_.set_option(tcp::no_delay(true), ignored);
        next_request();
    }

    // Called by the exchange.
    void send_reply(const Reply& reply);
    void send_events(std::string data);
    void finish_stream();
    bool is_open() const { return socket_.is_open(); }

    // The server closes: idle connections go at once, answers may finish.
    void close_when_done() {
        keep_alive_ = false;
        if (!is_answering_ && !is_ending_) close();
    }

private:
    enum class Wait { none, idle, head, body, write, linger };

    void arm(Wait wait, Clock::duration time);
    void disarm() { waiting_for_ = Wait::none; timer_.cancel(); }
    void on_time(Wait wait);
    void next_request();
    void read_more();
    void read_head();
    void on_head(error_code error);
    void read_body();
    void on_body(error_code error);
    void refuse(error_code error);
    void hand_over();
    void queue(std::string data);
    void write();
    void answer_written();
    void linger();
    void drop(std::string_view why);
    void client_gone();
    void close();
    void log_answer() const;

    Shared& shared_;
    tcp::socket socket_;
    asio::steady_timer timer_;
    Wait waiting_for_ = Wait::none;
    beast::flat_buffer buffer_;
    std::optional<beast::http::request_parser<beast::http::string_body>> parser_;
    Request request_;
    std::shared_ptr<ExchangeImpl> exchange_;
    std::deque<std::string> unsent_;
    size_t n_unsent_ = 0;
    size_t n_front_sent_ = 0;
    std::string discarded_;
    Clock::time_point received_;
    int status_ = 0;
    bool is_reading_ = false;    // a read that belongs to no parser is under way
    bool is_writing_ = false;
    bool is_answering_ = false;  // from the whole request to the whole answer
    bool is_stream_ = false;
    bool is_chunked_ = false;
    bool is_complete_ = false;   // the answer is queued to its end
    bool is_ending_ = false;     // the last bytes are on their way
    bool keep_alive_ = false;
    bool is_timed_out_ = false;
};

class ExchangeImpl : public Exchange, public std::enable_shared_from_this<ExchangeImpl> {
public:
    ExchangeImpl(Shared& shared, std::weak_ptr<Connection> connection)
        : shared_(shared), io_(shared.io), connection_(std::move(connection)) {}

    void post(std::function<void()> work) override {
        asio::dispatch(io_, [self = shared_from_this(), work = std::move(work)] {
            if (!self->is_over_) work();
        });
    }
    void post_to_handler(std::function<void()> work) override { asio::post(shared_.handlers, std::move(work)); }
    void reply(Reply reply) override {
        post([this, reply = std::move(reply)] {
            if (const auto connection = connection_.lock()) connection->send_reply(reply);
        });
    }
    void events(std::string data) override {
        post([this, data = std::move(data)]() mutable {
            if (const auto connection = connection_.lock()) connection->send_events(std::move(data));
        });
    }
    void finish() override {
        post([this] {
            if (const auto connection = connection_.lock()) connection->finish_stream();
        });
    }
    void on_gone(std::function<void()> gone) override {
        asio::dispatch(io_, [self = shared_from_this(), gone = std::move(gone)]() mutable {
            if (self->is_gone_) gone();
            else if (!self->is_over_) self->gone_ = std::move(gone);
        });
    }

    // Connection thread: the answer is complete.
    void complete() {
        is_over_ = true;
        gone_ = nullptr;
    }
    // Connection thread: nobody is left to answer.
    void client_gone() {
        if (is_over_) return;
        is_over_ = is_gone_ = true;
        if (const auto gone = std::exchange(gone_, nullptr)) gone();
    }

private:
    Shared& shared_;
    asio::io_context& io_;
    std::weak_ptr<Connection> connection_;
    std::function<void()> gone_;
    bool is_over_ = false;
    bool is_gone_ = false;
};

}  // namespace assay::server::http
