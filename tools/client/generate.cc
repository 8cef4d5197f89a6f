// nibble generate and nibble chat.
#include <unistd.h>

#include <iostream>
#include <string>

#include "tools/client/client.h"
#include "tools/client/request_options.h"

namespace nibble::client {
namespace {

// What both subcommands were asked; lives as long as the app.
struct Asked {
  RequestOptions options;
  std::string text;          // positional
  std::string file;          // --file
  std::string system;        // chat
  std::vector<int32_t> ids;  // generate
  bool no_stream = false;
  bool stats = false;
};

void AddCommon(CLI::App& command, Connection& connection, Asked& asked) {
  connection.AddTo(command);
  asked.options.AddTo(command);
  command.add_option("-f,--file", asked.file,
                     "Read the prompt from a file; -: standard input");
  command.add_flag("--no-stream", asked.no_stream, "Wait for the whole answer");
  command.add_flag("--stats", asked.stats,
                   "Tokens, times and why it ended, on standard error");
}

// The prompt's text: the argument, the file, or standard input.
absl::StatusOr<std::string> PromptText(const Asked& asked) {
  if (!asked.file.empty()) {
    if (!asked.text.empty()) {
      return absl::InvalidArgumentError(
          "give the prompt as an argument or by --file, not both");
    }
    return ReadInput(asked.file);
  }
  if (!asked.text.empty()) return asked.text;
  return ReadInput("-");
}

void PrintStats(const v1::Finish& finish) {
  const v1::Usage& usage = finish.usage();
  const v1::Timings& timings = finish.timings();
  const int decoded = usage.generated_tokens() - 1;
  std::cerr << "[" << v1::FinishReason_Name(finish.reason()).substr(14) << "; "
            << usage.prompt_tokens() << " prompt tokens ("
            << usage.cached_tokens() << " cached), " << usage.generated_tokens()
            << " generated; first after "
            << static_cast<double>(timings.first_token_us()) / 1000 << " ms";
  if (decoded > 0 && timings.decode_us() > 0) {
    std::cerr << ", then "
              << decoded * 1e6 / static_cast<double>(timings.decode_us())
              << " tokens/s";
  }
  std::cerr << "; seed " << finish.seed() << "]\n";
}

// One unary call; `answer`, if given, gets output 0's text.
int CallUnary(const v1::GenerateRequest& request, const Connection& connection,
              const Asked& asked, std::string* answer) {
  const auto stub = v1::Generation::NewStub(connection.Channel());
  grpc::ClientContext context;
  connection.Prepare(context);
  CancelOnInterrupt cancel(context);
  v1::GenerateResponse response;
  const grpc::Status status = stub->Generate(&context, request, &response);
  if (!status.ok()) return Report(status, connection);
  if (connection.json) {
    PrintJson(response);
    return kOk;
  }
  for (const v1::Output& output : response.outputs()) {
    if (response.outputs_size() > 1) {
      PrintText("--- output " + std::to_string(output.index()) + "\n");
    }
    PrintText(output.text() + "\n");
    if (asked.stats) PrintStats(output.finish());
  }
  if (answer != nullptr && response.outputs_size() > 0) {
    *answer = response.outputs(0).text();
  }
  return kOk;
}

int CallStream(const v1::GenerateRequest& request, const Connection& connection,
               const Asked& asked, std::string* answer) {
  const auto stub = v1::Generation::NewStub(connection.Channel());
  grpc::ClientContext context;
  connection.Prepare(context);
  CancelOnInterrupt cancel(context);
  const auto reader = stub->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  bool began = false;
  v1::Finish finish;
  while (reader->Read(&chunk)) {
    began = true;
    if (connection.json) {
      PrintJson(chunk);
    } else {
      PrintText(chunk.text());
    }
    if (answer != nullptr) *answer += chunk.text();
    if (chunk.has_finish()) finish = chunk.finish();
  }
  const grpc::Status status = reader->Finish();
  if (began && !connection.json) PrintText("\n");
  if (!status.ok()) return Report(status, connection);
  if (asked.stats) PrintStats(finish);
  return kOk;
}

int Call(const v1::GenerateRequest& request, const Connection& connection,
         const Asked& asked, std::string* answer = nullptr) {
  // Several outputs as text would come interleaved.
  const bool many = request.sampling().n() > 1 && !connection.json;
  return asked.no_stream || many
             ? CallUnary(request, connection, asked, answer)
             : CallStream(request, connection, asked, answer);
}

int Fail(const absl::Status& status) {
  std::cerr << "nibble: " << status.message() << '\n';
  return kUsage;
}

int RunGenerate(const Connection& connection, const Asked& asked) {
  absl::StatusOr<v1::GenerateRequest> request = asked.options.ToProto();
  if (!request.ok()) return Fail(request.status());
  if (!asked.ids.empty()) {
    for (const int32_t id : asked.ids) {
      request->mutable_token_ids()->add_ids(id);
    }
  } else {
    absl::StatusOr<std::string> text = PromptText(asked);
    if (!text.ok()) return Fail(text.status());
    request->set_text(*std::move(text));
  }
  return Call(*request, connection, asked);
}

void AddMessage(v1::Chat& chat, const std::string& role, std::string content) {
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role(role);
  message.set_content(std::move(content));
}

// Turns until the end of standard input; the conversation grows.
int Converse(v1::GenerateRequest request, const Connection& connection,
             const Asked& asked) {
  std::cerr << "One message a line; Ctrl-D ends.\n";
  std::string line;
  while (std::cerr << "> ", std::getline(std::cin, line)) {
    if (line.empty()) continue;
    AddMessage(*request.mutable_chat(), "user", line);
    std::string answer;
    const int code = Call(request, connection, asked, &answer);
    if (code != kOk) return code;
    AddMessage(*request.mutable_chat(), "assistant", std::move(answer));
  }
  std::cerr << '\n';
  return kOk;
}

int RunChat(const Connection& connection, const Asked& asked) {
  absl::StatusOr<v1::GenerateRequest> request = asked.options.ToProto();
  if (!request.ok()) return Fail(request.status());
  request->mutable_chat();
  if (!asked.system.empty()) {
    AddMessage(*request->mutable_chat(), "system", asked.system);
  }
  if (asked.text.empty() && asked.file.empty() && isatty(STDIN_FILENO) != 0) {
    return Converse(*std::move(request), connection, asked);
  }
  absl::StatusOr<std::string> text = PromptText(asked);
  if (!text.ok()) return Fail(text.status());
  AddMessage(*request->mutable_chat(), "user", *std::move(text));
  return Call(*request, connection, asked);
}

}  // namespace

void AddGenerate(CLI::App& app, Connection& connection, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text, streamed as it is made");
  auto asked = std::make_shared<Asked>();
  AddCommon(*command, connection, *asked);
  command->add_option("prompt", asked->text,
                      "The text; without it, --file or standard input");
  command->add_option("--ids", asked->ids, "Token ids instead of a text")
      ->delimiter(',');
  command->callback([&connection, asked, exit_code] {
    *exit_code = RunGenerate(connection, *asked);
  });
}

void AddChat(CLI::App& app, Connection& connection, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "chat", "Ask the model; on a terminal without a message, converse");
  auto asked = std::make_shared<Asked>();
  AddCommon(*command, connection, *asked);
  command->add_option("message", asked->text,
                      "The message; without it, --file or standard input");
  command->add_option("--system", asked->system, "System prompt");
  command->callback([&connection, asked, exit_code] {
    *exit_code = RunChat(connection, *asked);
  });
}

}  // namespace nibble::client
