// nibble models, nibble tokenize and nibble status.
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tools/client/client.h"

namespace nibble::client {
namespace {

std::string State(const v1::Model& model) {
  // "MODEL_STATE_SERVING" -> "SERVING"
  return v1::ModelState_Name(model.state()).substr(12);
}

void PrintModel(const v1::Model& model) {
  std::cout << model.model() << "  " << State(model);
  if (!model.failure().empty()) std::cout << ": " << model.failure();
  std::cout << '\n';
  if (model.state() == v1::MODEL_STATE_FAILED) return;
  const auto line = [](std::string_view name, const auto& value) {
    std::cout << "  " << std::left << std::setw(14) << name << value << '\n';
  };
  line("title", model.title());
  line("architecture", model.architecture());
  std::ostringstream weights;
  weights << model.format() << ", " << std::fixed << std::setprecision(1)
          << static_cast<double>(model.parameters()) / 1e6 << " M parameters, "
          << static_cast<double>(model.weight_bytes()) / 1e6 << " MB";
  line("weights", weights.str());
  line("backend", model.backend() + " (" + model.device() + ")");
  line("context", std::to_string(model.context_length()) + " tokens (trained " +
                      std::to_string(model.trained_context_length()) + ")");
  std::ostringstream cache;
  cache << model.kv_cache().pages() << " pages of "
        << model.kv_cache().page_size() << " tokens, " << std::fixed
        << std::setprecision(1)
        << static_cast<double>(model.kv_cache().bytes()) / 1e6 << " MB";
  line("kv cache", cache.str());
  line("chat", model.chat_template().available()
                   ? model.chat_template().name()
                   : "no: " + model.chat_template().problem());
  line("numerics", model.numerics());
  for (const std::string& plan : model.plan()) line("plan", plan);
}

int RunModels(const Connection& connection, const std::string& name) {
  const auto stub = v1::Models::NewStub(connection.Channel());
  grpc::ClientContext context;
  connection.Prepare(context);
  if (!name.empty()) {
    v1::GetModelRequest request;
    request.set_model(name);
    v1::Model model;
    const grpc::Status status = stub->GetModel(&context, request, &model);
    if (!status.ok()) return Report(status, connection);
    connection.json ? PrintJson(model) : PrintModel(model);
    return kOk;
  }
  v1::ListModelsResponse response;
  const grpc::Status status =
      stub->ListModels(&context, v1::ListModelsRequest(), &response);
  if (!status.ok()) return Report(status, connection);
  if (connection.json) {
    PrintJson(response);
    return kOk;
  }
  for (const v1::Model& model : response.models()) PrintModel(model);
  return kOk;
}

struct TokenizeAsked {
  std::string model, text, file;
  bool parse_special = false;
  bool no_special = false;
};

// The bytes of a token as one JSON-like quoted word.
std::string Quoted(const std::string& bytes) {
  std::ostringstream out;
  out << '"';
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out << "\\x" << std::hex << std::setw(2) << std::setfill('0') << +byte
          << std::dec;
    } else {
      out << c;
    }
  }
  out << '"';
  return out.str();
}

int RunTokenize(const Connection& connection, const TokenizeAsked& asked) {
  v1::TokenizeRequest request;
  request.set_model(asked.model);
  request.set_parse_special(asked.parse_special);
  request.set_add_special(!asked.no_special);
  request.set_details(true);
  if (!asked.text.empty()) {
    request.set_text(asked.text);
  } else {
    absl::StatusOr<std::string> text =
        ReadInput(asked.file.empty() ? "-" : asked.file);
    if (!text.ok()) {
      std::cerr << "nibble: " << text.status().message() << '\n';
      return kUsage;
    }
    request.set_text(*std::move(text));
  }
  const auto stub = v1::Generation::NewStub(connection.Channel());
  grpc::ClientContext context;
  connection.Prepare(context);
  v1::TokenizeResponse response;
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  if (!status.ok()) return Report(status, connection);
  if (connection.json) {
    PrintJson(response);
    return kOk;
  }
  for (int i = 0; i < response.ids_size(); ++i) {
    std::cout << std::right << std::setw(8) << response.ids(i) << "  ";
    if (i < response.details_size()) {
      std::cout << Quoted(response.details(i).token_bytes());
    }
    std::cout << '\n';
  }
  return kOk;
}

// Health first: it answers even where the models' services do not.
int RunStatus(const Connection& connection, const std::string& name) {
  const std::shared_ptr<grpc::Channel> channel = connection.Channel();
  const auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  connection.Prepare(context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(name);
  grpc::health::v1::HealthCheckResponse response;
  grpc::Status status = health->Check(&context, request, &response);
  if (!status.ok()) return Report(status, connection);
  const bool serving =
      response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  const auto stub = v1::Models::NewStub(channel);
  grpc::ClientContext list_context;
  connection.Prepare(list_context);
  v1::ListModelsResponse models;
  status = stub->ListModels(&list_context, v1::ListModelsRequest(), &models);
  if (!status.ok()) return Report(status, connection);
  if (connection.json) {
    PrintJson(models);
    return serving ? kOk : kUnreachable;
  }
  std::cout << connection.target << "  "
            << grpc::health::v1::HealthCheckResponse::ServingStatus_Name(
                   response.status())
            << '\n';
  for (const v1::Model& model : models.models()) {
    if (!name.empty() && model.model() != name) continue;
    std::cout << "  " << std::left << std::setw(24) << model.model()
              << std::setw(10) << State(model) << "running "
              << model.load().requests_running() << ", waiting "
              << model.load().requests_waiting() << ", kv " << std::fixed
              << std::setprecision(1) << model.load().kv_usage() * 100
              << " %\n";
  }
  return serving ? kOk : kUnreachable;
}

}  // namespace

void AddModels(CLI::App& app, Connection& connection, int* exit_code) {
  CLI::App* command = app.add_subcommand("models", "What the server has");
  auto name = std::make_shared<std::string>();
  connection.AddTo(*command);
  command->add_option("name", *name, "One model only");
  command->callback([&connection, name, exit_code] {
    *exit_code = RunModels(connection, *name);
  });
}

void AddTokenize(CLI::App& app, Connection& connection, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Token ids of a text, one a line");
  auto asked = std::make_shared<TokenizeAsked>();
  connection.AddTo(*command);
  command->add_option("-m,--model", asked->model,
                      "Model name; not needed if the server has one");
  command->add_option("text", asked->text,
                      "The text; without it, --file or standard input");
  command->add_option("-f,--file", asked->file,
                      "Read the text from a file; -: standard input");
  command->add_flag("--parse-special", asked->parse_special,
                    "Special tokens spelled in the text become tokens");
  command->add_flag("--no-special", asked->no_special, "Add no BOS or EOS");
  command->callback([&connection, asked, exit_code] {
    *exit_code = RunTokenize(connection, *asked);
  });
}

void AddStatus(CLI::App& app, Connection& connection, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "status", "Health and load; exit code 0 when it serves, else 3");
  auto name = std::make_shared<std::string>();
  connection.AddTo(*command);
  command->add_option("name", *name, "One model only");
  command->callback([&connection, name, exit_code] {
    *exit_code = RunStatus(connection, *name);
  });
}

}  // namespace nibble::client
