// The parts of the server that need none.

#include <string>

#include "absl/status/status.h"
#include "base/utf8.h"
#include "engine/errors.h"
#include "gtest/gtest.h"
#include "server/chunk_outbox.h"
#include "server/grpc_status.h"
#include "server/request_from_proto.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

// What a message takes in a header, by the rules of gRPC over HTTP/2.
size_t EncodedBytes(const std::string& text) {
  size_t bytes = 0;
  for (const char c : text) bytes += c < 0x20 || c > 0x7e || c == '%' ? 3 : 1;
  return bytes;
}

TEST(GrpcStatus, EveryCodeKeepsItsNumberAndHasAReason) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(
        absl::Status(static_cast<absl::StatusCode>(code), "why"), "id");
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_FALSE(DetailsOf(status).reason.empty());
    EXPECT_EQ(DetailsOf(status).request_id, "id");
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(GrpcStatus, LongMessagesAreCutBetweenCharacters) {
  for (const std::string piece : {"x", "é", "語", "😀", "%", "\n"}) {
    std::string text;
    while (text.size() < 9000) text += piece;
    const grpc::Status status = ToGrpcStatus(absl::InternalError(text));
    const std::string& message = status.error_message();
    EXPECT_TRUE(IsValidUtf8(message));
    EXPECT_LE(EncodedBytes(message), kMaxStatusMessageBytes);
    EXPECT_GE(EncodedBytes(message), kMaxStatusMessageBytes - 20);
    EXPECT_EQ(message.substr(message.size() - 3), "...");
    // Both together stay below what clients accept, details in base 64.
    EXPECT_LT(EncodedBytes(message) + status.error_details().size() * 4 / 3,
              8000u);
  }
  const std::string exact(kMaxStatusMessageBytes, 'x');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(exact)).error_message(), exact);
}

TEST(GrpcStatus, BytesThatAreNotUtf8AreRepaired) {
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("a\xff"
                                             "b"))
                .error_message(),
            "a\uFFFDb");
}

TEST(GrpcStatus, DetailsSayWhatTheStatusKnows) {
  Details details =
      DetailsOf(ToGrpcStatus(engine::FieldError("sampling.top_p", "wrong")));
  EXPECT_EQ(details.field, "sampling.top_p");
  EXPECT_EQ(details.description, "sampling.top_p: wrong");
  EXPECT_FALSE(details.retry_seconds.has_value());
  details = DetailsOf(ToGrpcStatus(engine::RetryError(
      engine::Rejection::kQueueFull, "full", std::chrono::milliseconds(1500))));
  EXPECT_EQ(details.reason, "QUEUE_FULL");
  EXPECT_EQ(details.retry_seconds, 1.5);
  EXPECT_EQ(details.field, "");
}

v1::GenerateBatchChunk Chunk(int request, int output, const std::string& text) {
  v1::GenerateBatchChunk chunk;
  chunk.set_request_index(request);
  chunk.mutable_chunk()->set_index(output);
  chunk.mutable_chunk()->set_text(text);
  return chunk;
}

TEST(ChunkOutbox, MergesWhatWaitsForTheSameOutput) {
  ChunkOutbox outbox;
  v1::GenerateBatchChunk first = Chunk(0, 0, "a");
  first.mutable_chunk()->set_request_id("id");
  first.mutable_chunk()->add_tokens()->set_id(1);
  outbox.Push(first);
  outbox.Push(Chunk(0, 1, "x"));
  outbox.Push(Chunk(1, 0, "y"));
  v1::GenerateBatchChunk last = Chunk(0, 0, "b");
  last.mutable_chunk()->add_tokens()->set_id(2);
  last.mutable_chunk()->mutable_finish()->set_seed(7);
  outbox.Push(last);
  EXPECT_EQ(outbox.size(), 3u);
  EXPECT_GT(outbox.bytes(), 0u);
  const v1::GenerateChunk merged = outbox.Pop()->chunk();
  EXPECT_EQ(merged.text(), "ab");
  EXPECT_EQ(merged.request_id(), "id");
  ASSERT_EQ(merged.tokens_size(), 2);
  EXPECT_EQ(merged.tokens(1).id(), 2);
  EXPECT_EQ(merged.finish().seed(), 7u);
  // What was taken is not added to.
  outbox.Push(Chunk(0, 1, "z"));
  EXPECT_EQ(outbox.Pop()->chunk().text(), "xz");
  outbox.Push(Chunk(0, 1, "w"));
  EXPECT_EQ(outbox.Pop()->chunk().text(), "y");
  EXPECT_EQ(outbox.Pop()->chunk().text(), "w");
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0u);
  EXPECT_FALSE(outbox.Pop().has_value());
}

TEST(ChunkOutbox, MessagesStayFarBelowWhatClientsTake) {
  ChunkOutbox outbox;
  std::string all;
  for (int i = 0; i < 3000; ++i) {
    const std::string text(i % 97, static_cast<char>('a' + i % 26));
    all += text;
    outbox.Push(Chunk(0, 0, text));
  }
  std::string joined;
  while (auto chunk = outbox.Pop()) {
    EXPECT_LE(chunk->ByteSizeLong(), ChunkOutbox::kMaxMergedBytes + 100);
    joined += chunk->chunk().text();
  }
  EXPECT_EQ(joined, all);
}

TEST(ChunkOutbox, ErrorsAreNeverMerged) {
  ChunkOutbox outbox;
  v1::GenerateBatchChunk error;
  error.set_request_index(0);
  error.mutable_error()->set_code(3);
  outbox.Push(Chunk(0, 0, "a"));
  outbox.Push(error);
  ASSERT_EQ(outbox.size(), 2u);
  EXPECT_EQ(outbox.Pop()->chunk().text(), "a");
  EXPECT_EQ(outbox.Pop()->error().code(), 3);
}

TEST(RequestFromProto, AbsentFieldsGetTheDocumentedDefaults) {
  v1::GenerateRequest proto;
  proto.set_text("hi");
  const auto request = RequestFromProto(proto);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling.temperature, 1.0f);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request->n, 1);
  EXPECT_FALSE(request->max_new_tokens.has_value());
  EXPECT_EQ(request->output.logprobs, -1);
  EXPECT_EQ(request->output.prompt_logprobs, -1);
  EXPECT_FALSE(std::get<engine::TextPrompt>(request->prompt).parse_special);
  EXPECT_FALSE(std::get<engine::TextPrompt>(request->prompt).add_bos);
  EXPECT_EQ(request->max_queue, engine::Clock::duration::max());
  EXPECT_NE(RequestFromProto(proto)->sampling.seed, request->sampling.seed);
}

TEST(RequestFromProto, PresentZerosAreZeros) {
  v1::GenerateRequest proto;
  proto.set_text("hi");
  proto.mutable_sampling()->set_temperature(0);
  proto.mutable_sampling()->set_seed(0);
  proto.mutable_stopping()->set_max_new_tokens(0);
  proto.mutable_response()->set_prompt_logprobs(0);
  proto.mutable_response()->set_logprobs(true);
  proto.set_max_queue_ms(0);
  proto.set_add_bos(false);
  const auto request = RequestFromProto(proto);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->sampling.seed, 0u);
  EXPECT_EQ(request->max_new_tokens, 0);
  EXPECT_EQ(request->output.prompt_logprobs, 0);
  EXPECT_EQ(request->output.logprobs, 0);
  EXPECT_EQ(request->max_queue.count(), 0);
  EXPECT_EQ(std::get<engine::TextPrompt>(request->prompt).add_bos, false);
}

}  // namespace
}  // namespace nibble::server::testing
