#include "engine/validate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/errors.h"
#include "gtest/gtest.h"

namespace nibble::engine {
namespace {

constexpr int32_t kVocabulary = 10;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

Request Good() {
  Request request;
  request.id = "id";
  request.prompt = TokenPrompt{{0, kVocabulary - 1}};
  return request;
}

absl::Status Check(const std::function<void(Request&)>& change) {
  Request request = Good();
  change(request);
  return ValidateRequest(request, EngineOptions(), kVocabulary);
}

// The field that is refused, or "" when nothing is.
std::string Refused(const std::function<void(Request&)>& change) {
  const absl::Status status = Check(change);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorRejection(status), Rejection::kInvalid);
  const std::string field = ErrorField(status);
  EXPECT_FALSE(field.empty());
  EXPECT_EQ(std::string(status.message()).find(field + ": "), 0u) << status;
  return field;
}

struct FloatRange {
  const char* field;
  float kernels::SamplingParams::*member;
  std::vector<float> good;
  std::vector<float> bad;
};

TEST(ValidateRequest, RefusesSamplingNumbersOutOfRangeAndNotFinite) {
  using P = kernels::SamplingParams;
  const std::vector<FloatRange> ranges = {
      {"sampling.temperature", &P::temperature, {0, 1e-6f, 100}, {-1, 100.1f}},
      {"sampling.top_p", &P::top_p, {1e-6f, 1}, {0, -0.1f, 1.1f}},
      {"sampling.min_p", &P::min_p, {0, 1}, {-0.1f, 1.1f}},
      {"sampling.typical_p", &P::typical_p, {1e-6f, 1}, {0, 1.1f}},
      {"sampling.presence_penalty", &P::presence_penalty, {-2, 2}, {-2.1f, 3}},
      {"sampling.frequency_penalty", &P::frequency_penalty, {-2, 2}, {2.1f}},
      {"sampling.repetition_penalty",
       &P::repetition_penalty,
       {0.1f, 10},
       {0, -1, 10.5f}},
  };
  for (const FloatRange& range : ranges) {
    for (const float value : range.good) {
      EXPECT_EQ(Refused([&](Request& r) { r.sampling.*range.member = value; }),
                "")
          << range.field << " " << value;
    }
    std::vector<float> bad = range.bad;
    bad.insert(bad.end(), {kNan, kInfinity, -kInfinity});
    for (const float value : bad) {
      EXPECT_EQ(Refused([&](Request& r) { r.sampling.*range.member = value; }),
                range.field)
          << value;
    }
  }
  EXPECT_EQ(Refused([](Request& r) { r.sampling.top_k = -1; }),
            "sampling.top_k");
  EXPECT_EQ(Refused([](Request& r) { r.n = 0; }), "sampling.n");
  EXPECT_EQ(Refused([](Request& r) { r.n = 17; }), "sampling.n");
  EXPECT_EQ(Refused([](Request& r) { r.n = 16; }), "");
}

TEST(ValidateRequest, MessagesNameFieldValueAndRange) {
  const absl::Status status =
      Check([](Request& r) { r.sampling.top_p = 1.5f; });
  EXPECT_EQ(status.message(), "sampling.top_p: 1.5 is outside (0, 1]");
}

TEST(ValidateRequest, RefusesLogitBiasOutsideTheVocabulary) {
  const auto bias = [](int32_t id, float value) {
    return Refused([&](Request& r) { r.sampling.logit_bias = {{id, value}}; });
  };
  EXPECT_EQ(bias(-1, 1), "sampling.logit_bias[-1]");
  EXPECT_EQ(bias(kVocabulary - 1, 1), "");
  EXPECT_EQ(bias(kVocabulary, 1), "sampling.logit_bias[10]");
  EXPECT_EQ(bias(2147483647, 1), "sampling.logit_bias[2147483647]");
  EXPECT_EQ(bias(3, 1e38f), "");
  EXPECT_EQ(bias(3, -kInfinity), "");
  EXPECT_EQ(bias(3, kInfinity), "sampling.logit_bias[3]");
  EXPECT_EQ(bias(3, kNan), "sampling.logit_bias[3]");
  EXPECT_EQ(Refused([](Request& r) {
              r.sampling.logit_bias = {{1, 1.0f}, {1, 2.0f}};
            }),
            "sampling.logit_bias[1]");
  EXPECT_EQ(Refused([](Request& r) {
              r.sampling.logit_bias.assign(1025, {1, 1.0f});
            }),
            "sampling.logit_bias");
}

TEST(ValidateRequest, RefusesTokenIdsOutsideTheVocabulary) {
  EXPECT_EQ(Refused([](Request& r) {
              r.prompt = TokenPrompt{{0, -1}};
            }),
            "token_ids.ids[1]");
  EXPECT_EQ(Refused([](Request& r) { r.prompt = TokenPrompt{{kVocabulary}}; }),
            "token_ids.ids[0]");
  EXPECT_EQ(Refused([](Request& r) {
              r.stop.token_ids = {1, kVocabulary};
            }),
            "stopping.stop_token_ids[1]");
  EXPECT_EQ(Refused([](Request& r) { r.stop.token_ids = {-1}; }),
            "stopping.stop_token_ids[0]");
  EXPECT_EQ(Refused([](Request& r) { r.stop.token_ids.assign(2000, 1); }),
            "stopping.stop_token_ids");
}

TEST(ValidateRequest, RefusesStopStringsThatCannotWork) {
  const auto stops = [](std::vector<std::string> strings) {
    return Refused([&](Request& r) { r.stop.strings = strings; });
  };
  EXPECT_EQ(stops({""}), "stopping.stop[0]");
  EXPECT_EQ(stops({"a", ""}), "stopping.stop[1]");
  EXPECT_EQ(stops({"\xFF"}), "stopping.stop[0]");
  EXPECT_EQ(stops({std::string(256, 'a')}), "");
  EXPECT_EQ(stops({std::string(257, 'a')}), "stopping.stop[0]");
  EXPECT_EQ(stops(std::vector<std::string>(16, "a")), "");
  EXPECT_EQ(stops(std::vector<std::string>(17, "a")), "stopping.stop");
}

TEST(ValidateRequest, RefusesLengthsThatContradict) {
  EXPECT_EQ(Refused([](Request& r) { r.max_new_tokens = -1; }),
            "stopping.max_new_tokens");
  EXPECT_EQ(Refused([](Request& r) { r.stop.min_new_tokens = -1; }),
            "stopping.min_new_tokens");
  EXPECT_EQ(Refused([](Request& r) {
              r.max_new_tokens = 3;
              r.stop.min_new_tokens = 4;
            }),
            "stopping.min_new_tokens");
  EXPECT_EQ(Refused([](Request& r) {
              r.max_new_tokens = 3;
              r.stop.min_new_tokens = 3;
            }),
            "");
}

TEST(ValidateRequest, RefusesLogprobCountsOutOfRange) {
  EXPECT_EQ(Refused([](Request& r) { r.output.logprobs = 20; }), "");
  EXPECT_EQ(Refused([](Request& r) { r.output.logprobs = 21; }),
            "response.top_logprobs");
  EXPECT_EQ(Refused([](Request& r) { r.output.logprobs = -2; }),
            "response.top_logprobs");
  EXPECT_EQ(Refused([](Request& r) { r.output.prompt_logprobs = 21; }),
            "response.prompt_logprobs");
}

TEST(ValidateRequest, RefusesIdsSaltsAndPrioritiesOutOfRange) {
  EXPECT_EQ(Refused([](Request& r) { r.id = ""; }), "request_id");
  EXPECT_EQ(Refused([](Request& r) { r.id = std::string(128, 'x'); }), "");
  EXPECT_EQ(Refused([](Request& r) { r.id = std::string(129, 'x'); }),
            "request_id");
  EXPECT_EQ(Refused([](Request& r) { r.id = "a\nb"; }), "request_id");
  EXPECT_EQ(Refused([](Request& r) { r.id = "é"; }), "request_id");
  EXPECT_EQ(Refused([](Request& r) { r.priority = 101; }), "priority");
  EXPECT_EQ(Refused([](Request& r) { r.priority = -101; }), "priority");
  EXPECT_EQ(Refused([](Request& r) { r.cache_salt = std::string(257, 's'); }),
            "cache_salt");
  EXPECT_EQ(Refused([](Request& r) { r.max_queue = Clock::duration(-1); }),
            "max_queue_ms");
  EXPECT_EQ(Refused([](Request& r) { r.prompt = ChatPrompt{}; }),
            "chat.messages");
}

}  // namespace
}  // namespace nibble::engine
