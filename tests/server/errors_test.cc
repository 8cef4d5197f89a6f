// What a client hears when something is wrong: code, message, details; and
// that every refusal is counted once.

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

// Calls a method with these bytes as its request.
grpc::Status CallRaw(TestServer& server, const std::string& method,
                     const std::string& bytes) {
  grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(server.Connect());
  auto call =
      stub.PrepareUnaryCall(&context, "/nibble.v1." + method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

grpc::Status StatusOf(TestServer& server, const v1::GenerateRequest& request) {
  v1::GenerateResponse response;
  const grpc::Status unary = Generate(server, request, &response);
  const grpc::Status streamed = Stream(server, request).status;
  EXPECT_EQ(unary.error_code(), streamed.error_code());
  EXPECT_EQ(unary.error_message(), streamed.error_message());
  return unary;
}

std::string Rejected(const std::string& model, const std::string& reason) {
  return "nibble_admission_rejections_total{model_name=\"" + model +
         "\",reason=\"" + reason + "\"}";
}

struct WrongField {
  std::string field;
  std::function<void(v1::GenerateRequest&)> set;
};

TEST(Errors, AWrongFieldIsNamed) {
  TestServer server(AbcScript());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<WrongField> cases = {
      {"prompt", [](auto& r) { r.clear_prompt(); }},
      {"sampling.temperature",
       [](auto& r) { r.mutable_sampling()->set_temperature(-1); }},
      {"sampling.temperature",
       [=](auto& r) { r.mutable_sampling()->set_temperature(kNan); }},
      {"sampling.top_k", [](auto& r) { r.mutable_sampling()->set_top_k(-1); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p",
       [=](auto& r) { r.mutable_sampling()->set_top_p(kInf); }},
      {"sampling.min_p",
       [](auto& r) { r.mutable_sampling()->set_min_p(1.5f); }},
      {"sampling.typical_p",
       [](auto& r) { r.mutable_sampling()->set_typical_p(0); }},
      {"sampling.presence_penalty",
       [](auto& r) { r.mutable_sampling()->set_presence_penalty(3); }},
      {"sampling.frequency_penalty",
       [](auto& r) { r.mutable_sampling()->set_frequency_penalty(-3); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.logit_bias[27]",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[27] = 1; }},
      {"sampling.logit_bias[3]",
       [=](auto& r) {
         (*r.mutable_sampling()->mutable_logit_bias())[3] = kInf;
       }},
      {"sampling.n", [](auto& r) { r.mutable_sampling()->set_n(17); }},
      {"sampling.n", [](auto& r) { r.mutable_sampling()->set_n(0); }},
      {"stopping.max_new_tokens",
       [](auto& r) { r.mutable_stopping()->set_max_new_tokens(-1); }},
      {"stopping.min_new_tokens",
       [](auto& r) { r.mutable_stopping()->set_min_new_tokens(-1); }},
      {"stopping.stop[1]",
       [](auto& r) {
         r.mutable_stopping()->add_stop("x");
         r.mutable_stopping()->add_stop("");
       }},
      {"stopping.stop_token_ids[0]",
       [](auto& r) { r.mutable_stopping()->add_stop_token_ids(-1); }},
      {"response.top_logprobs",
       [](auto& r) { r.mutable_response()->set_top_logprobs(-1); }},
      {"response.top_logprobs",
       [](auto& r) { r.mutable_response()->set_top_logprobs(2); }},
      {"response.top_logprobs",
       [](auto& r) {
         r.mutable_response()->set_logprobs(true);
         r.mutable_response()->set_top_logprobs(21);
       }},
      {"response.prompt_logprobs",
       [](auto& r) { r.mutable_response()->set_prompt_logprobs(-1); }},
      {"request_id", [](auto& r) { r.set_request_id(std::string(129, 'x')); }},
      {"request_id", [](auto& r) { r.set_request_id("a\nb"); }},
      {"priority", [](auto& r) { r.set_priority(101); }},
      {"cache_salt", [](auto& r) { r.set_cache_salt(std::string(257, 'x')); }},
      {"token_ids.ids[1]",
       [](auto& r) {
         r.mutable_token_ids()->add_ids(0);
         r.mutable_token_ids()->add_ids(27);
       }},
      {"chat.messages", [](auto& r) { r.mutable_chat(); }},
  };
  int wrong = 0;
  for (const WrongField& wrong_field : cases) {
    v1::GenerateRequest request = TextRequest("hi");
    wrong_field.set(request);
    const grpc::Status status = StatusOf(server, request);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT)
        << wrong_field.field << ": " << status.error_message();
    EXPECT_EQ(status.error_message().rfind(wrong_field.field + ": ", 0), 0u)
        << status.error_message();
    const Details details = DetailsOf(status);
    EXPECT_EQ(details.field, wrong_field.field);
    EXPECT_EQ(details.reason, "INVALID_REQUEST");
    EXPECT_EQ(details.domain, "nibble");
    EXPECT_FALSE(details.request_id.empty());
    wrong += 2;  // unary and streamed
  }
  EXPECT_EQ(server.Metric(R"(nibble_requests_received_total{model_name="m"})"),
            wrong);
  EXPECT_EQ(server.Metric(Rejected("m", "invalid")), wrong);
}

TEST(Errors, TheModelIsNamed) {
  TestServer server(Scripts{{"one", AbcScript()}, {"two", AbcScript()}},
                    [](ServerConfig& config) {
                      config.models.push_back({"broken", "/nowhere.gguf"});
                    });
  v1::GenerateRequest request = TextRequest("hi");
  request.set_model("three");
  grpc::Status status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(status.error_message(),
            "no model is called 'three'; served are one, two, broken");
  EXPECT_EQ(DetailsOf(status).reason, "MODEL_NOT_FOUND");
  request.set_model("");
  status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "model");
  request.set_model("broken");
  status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "MODEL_FAILED");
  EXPECT_NE(status.error_message().find("/nowhere.gguf"), std::string::npos);
  EXPECT_EQ(server.Metric(Rejected("(unknown)", "unknown_model")), 2);
  EXPECT_EQ(server.Metric(Rejected("(unknown)", "invalid")), 2);
  EXPECT_EQ(server.Metric(Rejected("broken", "model_not_serving")), 2);
  EXPECT_EQ(server.Sum("nibble_requests_received_total"), 6);

  v1::TokenizeRequest tokenize;
  tokenize.set_model("three");
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(
      server.generation().Tokenize(&context, tokenize, &response).error_code(),
      grpc::NOT_FOUND);
}

TEST(Errors, BytesThatAreNotUtf8AreNamedWithTheirField) {
  TestServer server(AbcScript());
  // 4: chat { 1: messages { 2: content "\xff" } }, after a sound message.
  const std::string sound("\x0a\x03\x12\x01\x61", 5);
  const std::string broken("\x0a\x03\x12\x01\xff", 5);
  const std::string chat = std::string("\x22\x0a") + sound + broken;
  for (const std::string method :
       {"Generation/Generate", "Generation/GenerateStream"}) {
    const grpc::Status status = CallRaw(server, method, chat);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << method;
    EXPECT_EQ(status.error_message(),
              "chat.messages[1].content: not valid UTF-8");
    EXPECT_EQ(DetailsOf(status).field, "chat.messages[1].content");
  }
  // 1: requests { 8: stopping { 2: stop "\xc0" } }
  const grpc::Status batch =
      CallRaw(server, "Generation/GenerateBatch",
              std::string("\x0a\x05\x42\x03\x12\x01\xc0", 7));
  EXPECT_EQ(batch.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(batch).field, "requests[0].stopping.stop[0]");
  // 2: text "\xe5"
  const grpc::Status tokenize =
      CallRaw(server, "Generation/Tokenize", std::string("\x12\x01\xe5", 3));
  EXPECT_EQ(DetailsOf(tokenize).field, "text");
  const grpc::Status model =
      CallRaw(server, "Models/GetModel", std::string("\x0a\x01\x80", 3));
  EXPECT_EQ(DetailsOf(model).field, "model");
  EXPECT_EQ(server.Metric(Rejected("(unknown)", "invalid")), 3);
}

// A method and a message of its request's type.
struct Method {
  std::string name;
  std::shared_ptr<google::protobuf::Message> request;
};

std::vector<Method> AllMethods() {
  return {
      {"Generation/Generate", std::make_shared<v1::GenerateRequest>()},
      {"Generation/GenerateStream", std::make_shared<v1::GenerateRequest>()},
      {"Generation/GenerateBatch",
       std::make_shared<v1::GenerateBatchRequest>()},
      {"Generation/Tokenize", std::make_shared<v1::TokenizeRequest>()},
      {"Generation/Detokenize", std::make_shared<v1::DetokenizeRequest>()},
      {"Models/ListModels", std::make_shared<v1::ListModelsRequest>()},
      {"Models/GetModel", std::make_shared<v1::GetModelRequest>()},
      {"Models/LoadModel", std::make_shared<v1::LoadModelRequest>()},
      {"Models/UnloadModel", std::make_shared<v1::UnloadModelRequest>()},
  };
}

TEST(Errors, BytesThatAreNoMessageAreInvalid) {
  TestServer server(AbcScript());
  const std::vector<std::string> garbage = {
      std::string(11, '\xff'),
      std::string("\x12\x7f\x61", 3),  // longer than what is there
      std::string("\x22\x05\x0a\x7f\x61\x61\x61", 7),  // inside a message
      std::string("\x00", 1),                          // field number 0
      std::string("\x12", 1),
      "hello, this is text",
      std::string(1000, '\x0b'),  // groups in groups
  };
  int refused = 0;
  for (const Method& method : AllMethods()) {
    for (const std::string& bytes : garbage) {
      // To some messages some of these are unknown fields, which are allowed.
      if (method.request->ParseFromString(bytes)) continue;
      const grpc::Status status = CallRaw(server, method.name, bytes);
      EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << method.name;
      EXPECT_FALSE(status.error_message().empty()) << method.name;
      EXPECT_FALSE(DetailsOf(status).field.empty()) << method.name;
      ++refused;
    }
  }
  EXPECT_GE(refused, 9 * 5);
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate(server, TextRequest("a"), &response).ok());
}

TEST(Errors, RandomBytesNeverBringTheServerDown) {
  TestServer server(AbcScript());
  uint64_t state = 12345;
  v1::GenerateRequest sound = TextRequest("hello");
  sound.mutable_stopping()->add_stop("x");
  sound.mutable_sampling()->set_n(2);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = sound.SerializeAsString();
    for (int change = 0; change < 3; ++change) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bytes[(state >> 33) % bytes.size()] = static_cast<char>(state >> 24);
    }
    const grpc::Status status = CallRaw(
        server, i % 2 == 0 ? "Generation/Generate" : "Generation/Tokenize",
        bytes);
    EXPECT_TRUE(status.error_code() == grpc::OK ||
                status.error_code() == grpc::INVALID_ARGUMENT ||
                status.error_code() == grpc::NOT_FOUND ||
                status.error_code() == grpc::FAILED_PRECONDITION)
        << status.error_code() << " " << status.error_message();
  }
}

TEST(Errors, AnIdThatIsLiveIsRefused) {
  TestServer server(EndlessScript(1000));
  v1::GenerateRequest request = TextRequest("a");
  request.set_request_id("x");
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  const grpc::Status status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(DetailsOf(status).reason, "DUPLICATE_ID");
  EXPECT_EQ(DetailsOf(status).request_id, "x");
  context.TryCancel();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::CANCELLED);
  request.mutable_stopping()->set_max_new_tokens(1);
  v1::GenerateResponse response;
  EXPECT_TRUE(
      Eventually([&] { return Generate(server, request, &response).ok(); }));
}

TEST(Errors, AFullQueueSaysWhenToTryAgain) {
  TestServer server(EndlessScript(1000), [](ServerConfig& config) {
    config.max_sequences = 1;
    config.max_queue = 2;
  });
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>>> readers;
  const auto begin = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.generation().GenerateStream(contexts.back().get(),
                                                         TextRequest("a")));
  };
  begin();
  v1::GenerateChunk chunk;
  ASSERT_TRUE(readers[0]->Read(&chunk));
  begin();
  begin();
  const std::string waiting = R"(nibble_num_requests_waiting{model_name="m"})";
  ASSERT_TRUE(Eventually([&] { return server.Metric(waiting) == 2; }));
  EXPECT_EQ(server.Metric(R"(nibble_num_requests_running{model_name="m"})"), 1);
  EXPECT_GT(server.Metric(R"(nibble_kv_cache_usage_perc{model_name="m"})"), 0);
  for (int i = 0; i < 7; ++i) {
    const grpc::Status status = StatusOf(server, TextRequest("a"));
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    const Details details = DetailsOf(status);
    EXPECT_EQ(details.reason, "QUEUE_FULL");
    ASSERT_TRUE(details.retry_seconds.has_value());
    EXPECT_GT(*details.retry_seconds, 0);
  }
  EXPECT_EQ(server.Metric(Rejected("m", "queue_full")), 14);
  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) ReadAll(*reader);
  EXPECT_TRUE(Eventually([&] { return server.Metric(waiting) == 0; }));
}

TEST(Errors, LimitsOfTheModelAndTheServer) {
  TestServer server(
      LettersScript(
          R"("ids":["a"],"context_length":64,"pages":3,"page_size":16)"),
      [](ServerConfig& config) { config.max_message_bytes = 100'000; });
  v1::GenerateRequest request = TextRequest(std::string(65, 'a'));
  grpc::Status status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("65"), std::string::npos);
  EXPECT_NE(status.error_message().find("64"), std::string::npos);
  EXPECT_EQ(DetailsOf(status).reason, "TOO_LONG");
  request = TextRequest(std::string(40, 'a'));
  request.mutable_stopping()->set_max_new_tokens(20);
  status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).reason, "NEVER_FITS");
  // gRPC itself answers this one; the message tells both sizes.
  status = StatusOf(server, TextRequest(std::string(200'000, 'a')));
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("100000"), std::string::npos);
}

TEST(Errors, ChatWithoutATemplate) {
  TestServer server(AbcScript());
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  const grpc::Status status = StatusOf(server, request);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).reason, "CANNOT_SERVE");
}

TEST(Errors, LogitsThatAreNotFiniteFailThatRequestOnly) {
  TestServer server(LettersScript(
      R"("scripts":[{"when":{"prompt_begins":"bad"},"logits":[{"a":"nan"}]},)"
      R"({"ids":["a"]}])"));
  const grpc::Status status = StatusOf(server, TextRequest("bad"));
  EXPECT_EQ(status.error_code(), grpc::INTERNAL);
  EXPECT_EQ(DetailsOf(status).reason, "MODEL_ERROR");
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate(server, TextRequest("good"), &response).ok());
  EXPECT_EQ(server.Metric("nibble_request_total"
                          R"({finish_reason="error",model_name="m"})"),
            2);
}

TEST(Errors, MethodsThatAreNotBuiltNameThemselves) {
  TestServer server(AbcScript());
  v1::Model model;
  grpc::ClientContext load_context;
  grpc::Status status =
      server.models().LoadModel(&load_context, v1::LoadModelRequest(), &model);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("LoadModel"), std::string::npos);
  v1::UnloadModelResponse unloaded;
  grpc::ClientContext unload_context;
  status = server.models().UnloadModel(&unload_context,
                                       v1::UnloadModelRequest(), &unloaded);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("UnloadModel"), std::string::npos);
}

TEST(Errors, OtherMethodsNameTheirFieldsToo) {
  TestServer server(AbcScript());
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(0);
  detokenize.add_ids(27);
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  grpc::Status status =
      server.generation().Detokenize(&context, detokenize, &text);
  EXPECT_EQ(DetailsOf(status).field, "ids[1]");
  v1::TokenizeResponse ids;
  grpc::ClientContext tokenize_context;
  status = server.generation().Tokenize(&tokenize_context,
                                        v1::TokenizeRequest(), &ids);
  EXPECT_EQ(DetailsOf(status).field, "input");
  for (const int count : {0, 257}) {
    v1::GenerateBatchRequest batch;
    for (int i = 0; i < count; ++i) *batch.add_requests() = TextRequest("a");
    grpc::ClientContext batch_context;
    auto reader = server.generation().GenerateBatch(&batch_context, batch);
    v1::GenerateBatchChunk chunk;
    EXPECT_FALSE(reader->Read(&chunk));
    status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(status).field, "requests");
  }
}

}  // namespace
}  // namespace nibble::server::testing
