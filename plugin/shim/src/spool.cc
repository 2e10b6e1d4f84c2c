#include "spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "deadline.h"
#include "descriptor.h"
#include "protocol.h"
#include "text/json_scan.h"

namespace podwire {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr mode_t kWritableByOthers = 0022;

// The separator of a file's name, and what no file's name can hold.
constexpr std::string_view kNotInNames("/,\0", 3);

Buffer Terminated(std::string_view text) { return Concat({text, std::string_view("\0", 1)}); }

Buffer FileSystemFault(std::string_view operation, int error) {
  // strerror's words for ENOENT are forbidden: see failure.h.
  return Concat({operation, ": ", error == ENOENT ? "the folder was removed" : strerror(error)});
}

// The resident plugin reads the spool beside the path that it listens at, not beside a link to it.
bool IsLink(std::string_view path) {
  struct stat found {};
  return lstat(Terminated(path).View().data(), &found) == 0 && S_ISLNK(found.st_mode);
}

// Opens the spool; creates it where the folder of the socket exists. A link is not followed: `socket` may name a folder
// that other users can write.
int OpenSpool(std::string_view socket_path) {
  const Buffer parent_path = Terminated(socket_path.substr(0, socket_path.rfind('/') + 1));
  const Descriptor parent(open(parent_path.View().data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.Get() < 0) return -1;
  if (mkdirat(parent.Get(), kSpoolFolder, kFolderMode) != 0 && errno != EEXIST) return -1;
  return openat(parent.Get(), kSpoolFolder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool IsOwn(int folder) {
  struct stat found {};
  return fstat(folder, &found) == 0 && found.st_uid == geteuid() && (found.st_mode & kWritableByOthers) == 0;
}

// Whether the spool has kMaxSpooledCount files besides the two named; true if it cannot be read.
bool IsFull(int folder, const char* temporary_name, const char* name) {
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = copy < 0 ? nullptr : fdopendir(copy);
  if (listing == nullptr) {
    if (copy >= 0) close(copy);
    return true;
  }
  std::size_t count = 0;
  while (const dirent* const entry = readdir(listing)) {
    const std::string_view found = entry->d_name;
    if (found != "." && found != ".." && found != temporary_name && found != name) ++count;
  }
  closedir(listing);
  return count >= kMaxSpooledCount;
}

bool WriteWhole(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Writes the temporary file, and renames it once it is complete.
std::optional<Buffer> Put(int folder, const char* temporary_name, const char* name, const Request& request) {
  const Descriptor file(
      openat(folder, temporary_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (file.Get() < 0) return FileSystemFault("its file cannot be created", errno);
  // Counted with the own file in place: processes that run at the same time count each other's.
  if (IsFull(folder, temporary_name, name)) {
    return Concat({"it holds ", Decimal(kMaxSpooledCount), " files, its limit"});
  }
  if (!WriteWhole(file.Get(), request.head) || !WriteWhole(file.Get(), request.body) || fsync(file.Get()) != 0) {
    return FileSystemFault("its file cannot be written", errno);
  }
  if (renameat(folder, temporary_name, folder, name) != 0) return FileSystemFault("its file cannot be renamed", errno);
  if (fsync(folder) != 0) return FileSystemFault("its folder cannot be synced", errno);
  return std::nullopt;
}

}  // namespace

std::optional<SpooledAttachment> AttachmentOf(const Environment& environment, std::string_view configuration) {
  SpooledAttachment attachment{{}, environment.Get("CNI_CONTAINERID"), environment.Get("CNI_IFNAME")};
  const bool is_named = FindTopLevelString(configuration, "name", attachment.network) == Lookup::kString;
  if (!is_named) return std::nullopt;
  for (const std::string_view part : {attachment.network.View(), attachment.container_id, attachment.interface_name}) {
    if (part.empty() || part.find_first_of(kNotInNames) != part.npos) return std::nullopt;
  }
  return attachment;
}

Buffer SpoolName(const SpooledAttachment& attachment) {
  return Concat(
      {attachment.network.View(), ",", attachment.container_id, ",", attachment.interface_name, kSpoolSuffix});
}

std::optional<Buffer> WriteToSpool(std::string_view socket_path, std::string_view name, const Request& request) {
  if (IsLink(socket_path)) return Concat({"the path of the socket is a link"});
  const Descriptor folder(OpenSpool(socket_path));
  if (folder.Get() < 0) {
    return errno == ENOENT ? Concat({"the folder of the socket does not exist"})
                           : FileSystemFault("its folder cannot be opened", errno);
  }
  if (!IsOwn(folder.Get())) return Concat({"its folder belongs to another user, or other users can write to it"});
  // Processes of different PID namespaces may have the same ID.
  const Buffer temporary_name = Concat(
      {Decimal(static_cast<unsigned>(getpid())), ".", Decimal(UnixTimeNs()), kSpoolWriting, std::string_view("\0", 1)});
  const Buffer final_name = Terminated(name);
  auto fault = Put(folder.Get(), temporary_name.View().data(), final_name.View().data(), request);
  if (fault) unlinkat(folder.Get(), temporary_name.View().data(), 0);
  return fault;
}

}  // namespace podwire
