// Runs programs as a container runtime does, and measures each from exec to exit, without the overhead of a JavaScript
// caller.
//
// Requests on standard input, until its end: a count, then that many strings: the program, its standard input, and its
// environment variables. Answers on standard output: nanoseconds, the exit code (128 + signal for a killed program),
// and its standard output. Integers are 64 bits in the machine's own order; strings are their length and their bytes.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kSignalExit = 128;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

// False at the end of the input.
bool ReadExactly(void* to, size_t size) {
  auto* bytes = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = read(STDIN_FILENO, bytes, size);
    if (got == 0) return false;
    if (got < 0) Die("exec-timer: read");
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

void WriteAll(int fd, const void* from, size_t size) {
  const auto* bytes = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t put = write(fd, bytes, size);
    if (put < 0) Die("exec-timer: write");
    bytes += put;
    size -= static_cast<size_t>(put);
  }
}

void WriteNumber(int64_t number) { WriteAll(STDOUT_FILENO, &number, sizeof number); }

bool ReadNumber(int64_t* number) { return ReadExactly(number, sizeof *number); }

bool ReadText(std::string* text) {
  int64_t size = 0;
  if (!ReadNumber(&size)) return false;
  text->resize(static_cast<size_t>(size));
  return ReadExactly(text->data(), text->size());
}

struct Outcome {
  int64_t nanoseconds;
  int64_t exit_code;
  std::string output;
};

std::string ReadToEnd(int fd) {
  std::string all;
  char chunk[4096];
  for (ssize_t got; (got = read(fd, chunk, sizeof chunk)) > 0;) all.append(chunk, static_cast<size_t>(got));
  return all;
}

// `fields`: program, standard input, environment. The input has to fit into a pipe, as it is written before it is read.
Outcome Execute(std::vector<std::string>& fields) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("exec-timer: pipe");
  WriteAll(in[1], fields[1].data(), fields[1].size());
  close(in[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  char* argv[] = {fields[0].data(), nullptr};
  std::vector<char*> env;
  for (size_t i = 2; i < fields.size(); i++) env.push_back(fields[i].data());
  env.push_back(nullptr);

  const auto start = std::chrono::steady_clock::now();
  pid_t pid = 0;
  if (posix_spawn(&pid, fields[0].c_str(), &actions, nullptr, argv, env.data()) != 0) Die("exec-timer: spawn");
  close(out[1]);
  Outcome outcome{};
  outcome.output = ReadToEnd(out[0]);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) Die("exec-timer: wait");
  outcome.nanoseconds = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalExit + WTERMSIG(status);

  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[0]);
  return outcome;
}

}  // namespace

int main() {
  for (int64_t count = 0; ReadNumber(&count);) {
    std::vector<std::string> fields(static_cast<size_t>(count));
    for (std::string& field : fields) {
      if (!ReadText(&field)) return 1;
    }
    const Outcome outcome = Execute(fields);
    WriteNumber(outcome.nanoseconds);
    WriteNumber(outcome.exit_code);
    WriteNumber(static_cast<int64_t>(outcome.output.size()));
    WriteAll(STDOUT_FILENO, outcome.output.data(), outcome.output.size());
  }
  return 0;
}
