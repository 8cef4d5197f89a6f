// nibble: the command-line client of nibble-server.
#include <exception>
#include <iostream>

#include "tools/client/client.h"

int main(int argc, char** argv) try {
  CLI::App app("nibble: talks to a nibble-server", "nibble");
  app.require_subcommand(1);
  app.set_version_flag("--version", NIBBLE_VERSION);
  app.footer(
      "Exit codes: 0 fine; 1 the server failed; 2 command line; 3 cannot "
      "reach it or it does not serve; 4 request refused; 5 overloaded; "
      "6 timed out; 130 interrupted.");
  nibble::client::Connection connection;
  int exit_code = nibble::client::kOk;
  nibble::client::AddGenerate(app, connection, &exit_code);
  nibble::client::AddChat(app, connection, &exit_code);
  nibble::client::AddModels(app, connection, &exit_code);
  nibble::client::AddTokenize(app, connection, &exit_code);
  nibble::client::AddStatus(app, connection, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? nibble::client::kOk : nibble::client::kUsage;
  }
  return exit_code;
} catch (const std::exception& error) {
  std::cerr << "nibble: " << error.what() << '\n';
  return nibble::client::kFailed;
}
