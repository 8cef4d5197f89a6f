// What each method answers when all is well.

#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

TEST(Generate, AnswersWithTextFinishUsageAndIds) {
  TestServer server(AbcScript());
  v1::GenerateResponse response;
  v1::GenerateRequest request = TextRequest("hello");
  request.set_request_id("mine");
  const grpc::Status status = Generate(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.request_id(), "mine");
  EXPECT_EQ(response.model(), "m");
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).text(), "abc");
  EXPECT_EQ(response.outputs(0).tokens_size(), 0);
  EXPECT_EQ(response.outputs(0).finish().reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(response.usage().prompt_tokens(), 5);
  EXPECT_EQ(response.usage().generated_tokens(), 4);  // the end token too
  EXPECT_EQ(response.prompt().tokens(), 5);
  const v1::Timings& timings = response.outputs(0).finish().timings();
  EXPECT_GE(timings.queue_us(), 0);
  EXPECT_GT(timings.first_token_us(), 0);
  EXPECT_EQ(timings.wide_rows(), 5);
  EXPECT_EQ(timings.narrow_rows(), 3);
}

TEST(Generate, MakesAnIdAndASeed) {
  TestServer server(AbcScript());
  v1::GenerateResponse one;
  v1::GenerateResponse two;
  ASSERT_TRUE(Generate(server, TextRequest("a"), &one).ok());
  ASSERT_TRUE(Generate(server, TextRequest("a"), &two).ok());
  EXPECT_FALSE(one.request_id().empty());
  EXPECT_NE(one.request_id(), two.request_id());
  EXPECT_NE(one.outputs(0).finish().seed(), two.outputs(0).finish().seed());
}

TEST(GenerateStream, JoinedChunksAreTheUnaryText) {
  // Bytes that are not UTF-8, characters in pieces, a stop that is held back.
  const std::string script =
      R"({"vocabulary":["a"," stop",{"bytes":"f09f"},{"bytes":"9880"},
          {"bytes":"ff"},{"bytes":"e5"},"the ",{"text":"<eos>","eos":true}],
          "ids":[6,2,3,0,4,1,5,5,0,2]})";
  TestServer server(script);
  for (const std::string stop : {"", "stop it", "a stop"}) {
    v1::GenerateRequest request = TextRequest("a");
    if (!stop.empty()) request.mutable_stopping()->add_stop(stop);
    v1::GenerateResponse unary;
    ASSERT_TRUE(Generate(server, request, &unary).ok());
    const Streamed streamed = Stream(server, request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    EXPECT_EQ(streamed.Text(), unary.outputs(0).text()) << stop;
    ASSERT_TRUE(streamed.FinishOf().has_value());
    EXPECT_EQ(streamed.FinishOf()->reason(),
              unary.outputs(0).finish().reason());
    EXPECT_TRUE(streamed.chunks.back().has_finish());
  }
}

TEST(GenerateStream, TheFirstChunkAloneSaysWhoAndWhat) {
  TestServer server(AbcScript(1000));
  v1::GenerateRequest request = TextRequest("hello");
  request.set_request_id("mine");
  const Streamed streamed = Stream(server, request);
  ASSERT_TRUE(streamed.status.ok());
  ASSERT_GE(streamed.chunks.size(), 2u);
  EXPECT_EQ(streamed.chunks[0].request_id(), "mine");
  EXPECT_EQ(streamed.chunks[0].model(), "m");
  EXPECT_EQ(streamed.chunks[0].prompt().tokens(), 5);
  for (size_t i = 1; i < streamed.chunks.size(); ++i) {
    EXPECT_EQ(streamed.chunks[i].request_id(), "");
    EXPECT_EQ(streamed.chunks[i].model(), "");
    EXPECT_FALSE(streamed.chunks[i].has_prompt());
  }
}

TEST(GenerateStream, SeveralOutputsEachHaveTheirTextAndFinish) {
  TestServer server(AbcScript());
  v1::GenerateRequest request = TextRequest("hello");
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_seed(40);
  const Streamed streamed = Stream(server, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(streamed.Text(i), "abc");
    ASSERT_TRUE(streamed.FinishOf(i).has_value()) << i;
    EXPECT_EQ(streamed.FinishOf(i)->seed(), 40u + i);
  }
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, request, &response).ok());
  ASSERT_EQ(response.outputs_size(), 3);
  EXPECT_EQ(response.outputs(2).index(), 2);
  EXPECT_EQ(response.usage().prompt_tokens(), 5);
  EXPECT_EQ(response.usage().generated_tokens(), 12);
}

TEST(Generate, TokensCarryWhatWasAskedFor) {
  const std::string script = LettersScript(
      R"("default_logit":"-inf","logits":[{"b":2,"a":1},{"c":0}])");
  TestServer server(script);
  v1::GenerateRequest request = TextRequest("hi");
  v1::ResponseOptions& options = *request.mutable_response();
  options.set_logprobs(true);
  options.set_top_logprobs(3);
  options.set_token_bytes(true);
  options.set_echo(true);
  request.mutable_stopping()->set_max_new_tokens(2);
  v1::GenerateResponse response;
  const grpc::Status status = Generate(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::Output& output = response.outputs(0);
  EXPECT_EQ(output.text(), "hibc");
  EXPECT_EQ(response.prompt().echo_text(), "hi");
  ASSERT_EQ(output.tokens_size(), 2);
  EXPECT_EQ(output.tokens(0).id(), 1);
  EXPECT_EQ(output.tokens(0).token_bytes(), "b");
  EXPECT_EQ(output.tokens(0).rank(), 1);
  EXPECT_NEAR(output.tokens(0).logprob(), -0.3132617f, 1e-5f);
  ASSERT_EQ(output.tokens(0).top_logprobs_size(), 3);
  EXPECT_EQ(output.tokens(0).top_logprobs(1).token_bytes(), "a");
  EXPECT_TRUE(std::isinf(output.tokens(0).top_logprobs(2).logprob()));

  options.Clear();
  options.set_prompt_logprobs(0);
  ASSERT_TRUE(Generate(server, request, &response).ok());
  ASSERT_EQ(response.prompt().prompt_tokens_size(), 2);
  EXPECT_FALSE(response.prompt().prompt_tokens(0).has_logprob());
  EXPECT_TRUE(response.prompt().prompt_tokens(1).has_logprob());
  EXPECT_EQ(response.outputs(0).tokens_size(), 0);
}

TEST(Generate, ChatIsRenderedWithTheModelsTemplate) {
  const std::string script =
      R"({"vocabulary":[{"text":"<|im_start|>","special":true},
          {"text":"<|im_end|>","eos":true},"yes","no"],"all_bytes":true,
          "chat_template":"chatml","scripts":[
          {"when":{"prompt_contains":"<|im_start|>user\nhi<|im_end|>"},
           "ids":["yes"]},{"ids":["no"]}]})";
  TestServer server(script);
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hi");
  v1::GenerateResponse response;
  const grpc::Status status = Generate(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.outputs(0).text(), "yes");
}

TEST(GenerateBatch, EachRequestStandsForItself) {
  TestServer server(Scripts{{"abc", AbcScript()},
                            {"xyz", LettersScript(R"("ids":["x","y","z"])")}});
  v1::GenerateBatchRequest batch;
  for (int i = 0; i < 40; ++i) {
    v1::GenerateRequest& request = *batch.add_requests();
    request = TextRequest("hello");
    request.set_model(i % 2 == 0 ? "abc" : "xyz");
  }
  batch.mutable_requests(3)->mutable_sampling()->set_top_p(2);
  batch.mutable_requests(4)->set_model("none");
  batch.mutable_requests(5)->clear_prompt();
  grpc::ClientContext context;
  auto reader = server.generation().GenerateBatch(&context, batch);
  std::map<int, std::string> texts;
  std::map<int, int> errors;
  std::map<int, int> finishes;
  v1::GenerateBatchChunk chunk;
  while (reader->Read(&chunk)) {
    if (chunk.has_error()) {
      errors[chunk.request_index()] = chunk.error().code();
      EXPECT_FALSE(chunk.error().message().empty());
    } else {
      texts[chunk.request_index()] += chunk.chunk().text();
      finishes[chunk.request_index()] += chunk.chunk().has_finish();
    }
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(errors, (std::map<int, int>{{3, grpc::INVALID_ARGUMENT},
                                        {4, grpc::NOT_FOUND},
                                        {5, grpc::INVALID_ARGUMENT}}));
  EXPECT_EQ(texts.size(), 37u);
  for (const auto& [index, text] : texts) {
    EXPECT_EQ(text, index % 2 == 0 ? "abc" : "xyz") << index;
    EXPECT_EQ(finishes[index], 1) << index;
  }
}

TEST(Generate, SixtyFourStreamsGiveTheTextsTheyGiveAlone) {
  TestServer server(LettersScript(
      R"("hash":{"seed":7,"eos_period":40},"context_length":300)"));
  constexpr int kStreams = 64;
  const auto request_of = [](int i) {
    v1::GenerateRequest request = TextRequest("prompt" + std::string(i, 'a'));
    request.mutable_sampling()->set_temperature(i % 2);
    request.mutable_sampling()->set_seed(i);
    request.mutable_stopping()->set_max_new_tokens(60);
    return request;
  };
  std::vector<std::string> alone(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    v1::GenerateResponse response;
    const grpc::Status status = Generate(server, request_of(i), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    alone[i] = response.outputs(0).text();
  }
  std::vector<Streamed> together(kStreams);
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back(
        [&, i] { together[i] = Stream(server, request_of(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(together[i].status.ok()) << together[i].status.error_message();
    EXPECT_EQ(together[i].Text(), alone[i]) << i;
  }
}

TEST(Tokenize, GivesIdsAndPlaces) {
  TestServer server(LettersScript(R"("ids":["a"],"all_bytes":true)"));
  v1::TokenizeRequest request;
  request.set_text("ab<eos>");
  request.set_details(true);
  v1::TokenizeResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(
        server.generation().Tokenize(&context, request, &response).ok());
    ASSERT_EQ(response.ids_size(), 7);  // "<eos>" is five plain characters
    EXPECT_EQ(response.ids(1), 1);
    EXPECT_EQ(response.details(1).begin(), 1u);
    EXPECT_EQ(response.details(1).end(), 2u);
    EXPECT_EQ(response.details(1).token_bytes(), "b");
    EXPECT_FALSE(response.details(1).special());
  }
  request.set_parse_special(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(
        server.generation().Tokenize(&context, request, &response).ok());
    ASSERT_EQ(response.ids_size(), 3);
    EXPECT_TRUE(response.details(2).special());
    EXPECT_EQ(response.details(2).end(), 7u);
  }
}

TEST(Detokenize, GivesTextAndBytes) {
  TestServer server(LettersScript(R"("ids":["a"],"all_bytes":true)"));
  v1::DetokenizeRequest request;
  // 26 is <eos>; the missing bytes follow: 27 + 255 - 26 is 0xFF.
  for (const int id : {0, 26, 27 + 255 - 26, 1}) request.add_ids(id);
  v1::DetokenizeResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(
        server.generation().Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.text_bytes(),
              "a\xFF"
              "b");
    EXPECT_EQ(response.text(), "a\uFFFDb");
  }
  request.set_special(true);
  grpc::ClientContext context;
  ASSERT_TRUE(
      server.generation().Detokenize(&context, request, &response).ok());
  EXPECT_EQ(response.text(), "a<eos>\uFFFDb");
}

TEST(Models, AreListedWithWhatTheyAre) {
  TestServer server(
      Scripts{{"one", AbcScript()}, {"two", AbcScript()}},
      [](ServerConfig& config) {
        config.models.push_back({"broken", "/nowhere/model.gguf"});
      });
  v1::ListModelsResponse list;
  grpc::ClientContext list_context;
  ASSERT_TRUE(server.models().ListModels(&list_context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 3);
  EXPECT_EQ(list.models(2).state(), v1::MODEL_STATE_FAILED);
  EXPECT_NE(list.models(2).failure().find("/nowhere/model.gguf"),
            std::string::npos);
  v1::GetModelRequest request;
  request.set_model("two");
  v1::Model model;
  grpc::ClientContext context;
  ASSERT_TRUE(server.models().GetModel(&context, request, &model).ok());
  EXPECT_EQ(model.model(), "two");
  EXPECT_EQ(model.state(), v1::MODEL_STATE_SERVING);
  EXPECT_EQ(model.backend(), "scripted");
  EXPECT_EQ(model.vocab_size(), 27);
  EXPECT_GT(model.context_length(), 0);
  EXPECT_GT(model.kv_cache().pages(), 0);
  EXPECT_FALSE(model.chat_template().available());
  EXPECT_FALSE(model.chat_template().problem().empty());
  EXPECT_EQ(model.eos_token_id(), 26);
  EXPECT_FALSE(model.has_bos_token_id());
  EXPECT_EQ(model.numerics(), "stable");
  EXPECT_EQ(model.load().requests_running(), 0);
}

TEST(Server, ServesOverUnixSocketsAndIpv6) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("socket");
  TestServer server(AbcScript(), [&](ServerConfig& config) {
    config.listen = {"unix:" + path, "[::1]:0"};
  });
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, TextRequest("a"), &response).ok());
  const auto second = v1::Generation::NewStub(grpc::CreateChannel(
      server.server().addresses()[1], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  EXPECT_TRUE(second->Generate(&context, TextRequest("a"), &response).ok());
}

}  // namespace
}  // namespace nibble::server::testing
