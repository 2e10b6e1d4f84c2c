// Measures what one run of the shim costs from spawn to exit, beside /bin/true: the floor for any executed program.
// The two alternate, so that a busy machine slows both alike.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <vector>

namespace {

constexpr int kWarmUpRuns = 50;
constexpr int kRuns = 1000;

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Nanoseconds, or -1 when the program failed.
std::int64_t TimeOneRun(const char* program, const posix_spawn_file_actions_t* actions) {
  char name[4096];
  std::snprintf(name, sizeof(name), "%s", program);
  char command[] = "CNI_COMMAND=VERSION";
  char* const arguments[] = {name, nullptr};
  char* const environment[] = {command, nullptr};
  const std::int64_t start = NowNs();
  pid_t child = 0;
  int status = 0;
  if (posix_spawn(&child, program, actions, nullptr, arguments, environment) != 0) return -1;
  if (waitpid(child, &status, 0) != child || status != 0) return -1;
  return NowNs() - start;
}

double QuantileMs(std::vector<std::int64_t>& times, double quantile) {
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[static_cast<std::size_t>(quantile * static_cast<double>(times.size() - 1))]) / 1e6;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: startup SHIM\n");
    return 2;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);

  std::vector<std::int64_t> floor;
  std::vector<std::int64_t> shim;
  for (int run = -kWarmUpRuns; run < kRuns; ++run) {
    const std::int64_t floor_ns = TimeOneRun("/bin/true", &actions);
    const std::int64_t shim_ns = TimeOneRun(arguments[1], &actions);
    if (floor_ns < 0 || shim_ns < 0) {
      std::fprintf(stderr, "startup: %s did not run or failed\n", floor_ns < 0 ? "/bin/true" : arguments[1]);
      return 1;
    }
    if (run < 0) continue;
    floor.push_back(floor_ns);
    shim.push_back(shim_ns);
  }
  const double floor_p50 = QuantileMs(floor, 0.5);
  const double shim_p50 = QuantileMs(shim, 0.5);
  std::printf(
      "%d runs each, ms      p50    p99\n/bin/true          %6.3f %6.3f\nshim, VERSION      %6.3f %6.3f\nratio of p50  "
      "     %6.2f\n",
      kRuns, floor_p50, QuantileMs(floor, 0.99), shim_p50, QuantileMs(shim, 0.99), shim_p50 / floor_p50);
  return 0;
}
