#include "supervisor.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "deadline.h"
#include "stream.h"
#include "text/buffer.h"

namespace podwire {
namespace {

constexpr int kBadUsage = 2;
constexpr int kCannotRun = 127;
constexpr int kKilledBySignal = 128;

constexpr int kFirstPauseMs = 100;
constexpr int kLongestPauseMs = 5000;
// A program that ran this long has not failed at its start: the next pause is the first one again.
constexpr std::uint64_t kStableNs = 60'000'000'000;

constexpr int kMsPerSecond = 1000;
constexpr int kNsPerMs = 1'000'000;
constexpr int kPrintMs = 1000;

// Those after which the program is not started again; it decides how to end.
constexpr int kEndSignals[] = {SIGTERM, SIGINT, SIGQUIT};
constexpr int kOtherSignals[] = {SIGHUP, SIGUSR1, SIGUSR2};

// A failure to print is ignored: the program matters more than its log.
void Log(std::string_view level, std::string_view program, std::string_view text) {
  Buffer line = Concat({"{\"level\":\"", level, "\",\"service\":\"podwire-run\",\"msg\":\""});
  // The name of a program needs no escapes; one that does is not printed.
  line.Append(program.find_first_of("\"\\") == std::string_view::npos ? program : "the program");
  line.Append(Concat({": ", text, "\"}\n"}).View());
  static_cast<void>(WriteAll(STDERR_FILENO, line.View(), Deadline::In(kPrintMs)));
}

class Supervisor {
 public:
  Supervisor(char** command, const sigset_t& original_mask) : command_(command), original_mask_(original_mask) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGCHLD);
    for (const int signal : kEndSignals) sigaddset(&signals_, signal);
    for (const int signal : kOtherSignals) sigaddset(&signals_, signal);
  }

  int Run() {
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    if (!Start()) return kCannotRun;
    for (;;) {
      const int signal = sigwaitinfo(&signals_, nullptr);
      if (signal == SIGCHLD) {
        if (const auto code = Reap()) return *code;
      } else if (signal > 0) {
        Pass(signal);
      }
    }
  }

 private:
  bool Start() {
    started_ns_ = UnixTimeNs();
    child_ = fork();
    if (child_ < 0) {
      Log("fatal", command_[0], Concat({"cannot be started: ", strerror(errno)}).View());
      return false;
    }
    if (child_ > 0) return true;
    // Outside of a container, the program must not outlive this process unsupervised.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
    execvp(command_[0], command_);
    Log("fatal", command_[0], Concat({"cannot be run: ", strerror(errno), "; check the container's command"}).View());
    _exit(kCannotRun);
  }

  // Takes note of ended processes. The exit code of this process, once it has to end.
  std::optional<int> Reap() {
    int status = 0;
    pid_t pid = 0;
    std::optional<int> child_status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid == child_) child_status = status;
    }
    if (!child_status) return std::nullopt;
    if (WIFEXITED(*child_status)) return WEXITSTATUS(*child_status);
    const int signal = WTERMSIG(*child_status);
    if (is_ending_) return kKilledBySignal + signal;
    return StartAgain(signal);
  }

  std::optional<int> StartAgain(int signal) {
    if (UnixTimeNs() - started_ns_ >= kStableNs) pause_ms_ = kFirstPauseMs;
    Log("warn", command_[0],
        Concat({"ended by signal ", Decimal(static_cast<unsigned>(signal)), "; starts again in ",
                Decimal(static_cast<unsigned>(pause_ms_)), " ms"})
            .View());
    child_ = 0;
    Pause(pause_ms_);
    pause_ms_ = pause_ms_ * 2 < kLongestPauseMs ? pause_ms_ * 2 : kLongestPauseMs;
    if (is_ending_) return kKilledBySignal + signal;
    return Start() ? std::nullopt : std::optional(kCannotRun);
  }

  // Ends early when this process has to end.
  void Pause(int duration_ms) {
    const std::uint64_t end_ns = UnixTimeNs() + static_cast<std::uint64_t>(duration_ms) * kNsPerMs;
    for (std::uint64_t now_ns = UnixTimeNs(); now_ns < end_ns && !is_ending_; now_ns = UnixTimeNs()) {
      const auto left_ms = static_cast<long>((end_ns - now_ns) / kNsPerMs) + 1;
      const timespec timeout = {left_ms / kMsPerSecond, left_ms % kMsPerSecond * kNsPerMs};
      const int signal = sigtimedwait(&signals_, nullptr, &timeout);
      if (signal == SIGCHLD) {
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
      } else if (signal > 0) {
        Pass(signal);
      }
    }
  }

  void Pass(int signal) {
    for (const int end : kEndSignals) is_ending_ = is_ending_ || signal == end;
    if (child_ > 0) kill(child_, signal);
  }

  char** command_;
  sigset_t original_mask_;
  sigset_t signals_;
  pid_t child_ = 0;
  std::uint64_t started_ns_ = 0;
  int pause_ms_ = kFirstPauseMs;
  bool is_ending_ = false;
};

}  // namespace

int RunSupervisor(int argument_count, char** arguments) {
  if (argument_count < 1) {
    static_cast<void>(WriteAll(STDERR_FILENO,
                               "usage: podwire-run PROGRAM [ARGUMENT...]\n"
                               "Runs a program, and starts it again when a signal has killed it.\n",
                               Deadline::In(kPrintMs)));
    return kBadUsage;
  }
  sigset_t original_mask;
  sigprocmask(SIG_SETMASK, nullptr, &original_mask);
  return Supervisor(arguments, original_mask).Run();
}

}  // namespace podwire
