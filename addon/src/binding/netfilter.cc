#include "binding/netfilter.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "binding/object_reader.h"
#include "binding/shape.h"
#include "netfilter/conntrack.h"
#include "netfilter/set_field.h"

namespace podwire::netlink {

namespace {

// Calls back for each value of an array; stops at a pending exception.
void ForEach(Napi::Value value, const std::string& path, const std::function<void(Napi::Value, std::string)>& take) {
  if (value.Env().IsExceptionPending()) return;
  if (!value.IsArray()) {
    Napi::TypeError::New(value.Env(), path + ": must be an array").ThrowAsJavaScriptException();
    return;
  }
  const auto array = value.As<Napi::Array>();
  const uint32_t length = array.Length();
  for (uint32_t position = 0; position < length && !value.Env().IsExceptionPending(); ++position) {
    const Napi::HandleScope scope(value.Env());
    take(ElementAt(array, position), path + "[" + std::to_string(position) + "]");
  }
}

std::vector<std::string> ReadTexts(ObjectReader& reader, const char* name) {
  std::vector<std::string> texts;
  ForEach(reader.Value(name), reader.Path(name), [&](Napi::Value value, const std::string& path) {
    if (value.IsString()) {
      texts.push_back(value.As<Napi::String>().Utf8Value());
    } else {
      Napi::TypeError::New(value.Env(), path + ": must be a string").ThrowAsJavaScriptException();
    }
  });
  return texts;
}

std::vector<FieldType> ReadTypes(ObjectReader& reader, const char* name) {
  std::vector<FieldType> types;
  for (const auto& text : ReadTexts(reader, name)) {
    const auto type = FieldTypeOf(text);
    if (type) {
      types.push_back(*type);
    } else {
      reader.Fail(name, "types of fields");
    }
  }
  return types;
}

struct TypedSet {
  SetName name;
  SetType type;
};

TypedSet ReadSet(ObjectReader reader) {
  TypedSet set;
  set.name.family = static_cast<uint8_t>(reader.Number("family"));
  set.name.table = reader.Text("table");
  set.name.set = reader.Text("name");
  set.type.key = ReadTypes(reader, "key");
  set.type.data = ReadTypes(reader, "data");
  set.type.intervals = reader.Flag("intervals");
  if (set.type.key.empty()) reader.Fail("key", "at least one type");
  return set;
}

// A change as JavaScript gives it. Its elements are read on the thread of the pool.
struct TextChange {
  TypedSet set;
  bool deletes = false;
  std::string elements;
};

TextChange ReadChange(ObjectReader reader) {
  TextChange change;
  change.set = ReadSet(reader.Object("set"));
  change.deletes = reader.Flag("deletes");
  change.elements = reader.Text("elements");
  return change;
}

// The changes as the kernel takes them, and for each of their elements its position in JavaScript's list.
struct Changes {
  std::vector<ElementChange> changes;
  std::vector<std::vector<size_t>> sources;
};

// EINVAL with the path of a field that is not of its type.
std::optional<KernelError> Convert(const TextChange& text, const std::string& path, Changes& changes) {
  const auto elements = SplitElements(text.set.type, text.elements);
  if (!elements) return KernelError{EINVAL, path + ".elements: must be a text of the form of elements"};
  auto& change = changes.changes.emplace_back();
  auto& sources = changes.sources.emplace_back();
  change.deletes = text.deletes;
  change.list.name = text.set.name;
  for (size_t source = 0; source < elements->size(); ++source) {
    if (const auto wrong = AppendElement(text.set.type, (*elements)[source], change.list.elements)) {
      const std::string element = path + ".elements[" + std::to_string(source) + "].";
      return KernelError{EINVAL, element + wrong->path + ": must be " + wrong->expected};
    }
    sources.resize(change.list.elements.size(), source);
  }
  return std::nullopt;
}

struct Changed {
  ChangeResult result;
  std::vector<std::vector<size_t>> sources;
};

Result<Changed> Change(Netfilter& netfilter, const std::vector<TextChange>& texts) {
  Changes changes;
  for (size_t position = 0; position < texts.size(); ++position) {
    const std::string path = "changes[" + std::to_string(position) + "]";
    if (const auto wrong = Convert(texts[position], path, changes)) return *wrong;
  }
  auto result = netfilter.ChangeElements(changes.changes);
  if (!result) return result.Error();
  return Changed{std::move(*result), std::move(changes.sources)};
}

Napi::Value NumberOrNull(Napi::Env env, const std::optional<double>& number) {
  return number ? Napi::Value(Napi::Number::New(env, *number)) : env.Null();
}

Napi::Value ToResult(Napi::Env env, const Changed& changed) {
  const auto& [result, sources] = changed;
  auto outcomes = Napi::Array::New(env, result.outcomes.size());
  for (uint32_t position = 0; position < result.outcomes.size(); ++position) {
    const auto& [error, element] = result.outcomes[position];
    auto outcome = Napi::Object::New(env);
    outcome.Set("error", ToJsOrNull(env, error));
    outcome.Set("element",
                element ? Napi::Number::New(env, static_cast<double>(sources[position][*element])) : env.Null());
    outcomes.Set(position, outcome);
  }
  auto object = Napi::Object::New(env);
  object.Set("outcomes", outcomes);
  object.Set("generation", NumberOrNull(env, result.generation));
  return object;
}

void ReadPorts(ObjectReader& reader, std::vector<uint16_t>& ports) {
  const auto value = reader.Value("destinationPorts");
  if (!value.IsArray()) return reader.Fail("destinationPorts", "an array");
  const auto array = value.As<Napi::Array>();
  ports.reserve(array.Length());
  for (uint32_t position = 0; position < array.Length(); ++position) {
    const auto port = ElementAt(array, position);
    if (!port.IsNumber()) return reader.Fail("destinationPorts", "an array of numbers");
    ports.push_back(static_cast<uint16_t>(port.As<Napi::Number>().Uint32Value()));
  }
  std::sort(ports.begin(), ports.end());
}

std::optional<ConntrackFilter> ReadConntrackFilter(Napi::Value value) {
  ObjectReader reader(value, "filter");
  ConntrackFilter filter;
  filter.address = reader.OptionalAddress("address");
  const uint32_t family = reader.Number("family");
  filter.family = family == 4 ? AF_INET : family == 6 ? AF_INET6 : AF_UNSPEC;
  const auto protocol = reader.OptionalNumber("protocol");
  if (protocol) filter.protocol = static_cast<uint8_t>(*protocol);
  ReadPorts(reader, filter.destination_ports);
  // The kernel compares fields of one family only.
  if (filter.family == AF_UNSPEC) reader.Fail("family", "4 or 6");
  if (!filter.destination_ports.empty() && !filter.protocol) reader.Fail("protocol", "a number");
  if (reader.Failed()) return std::nullopt;
  return filter;
}

}  // namespace

Napi::Value DeleteConntrack(const NetfilterWorker& worker, Napi::Value value) {
  const auto filter = ReadConntrackFilter(value);
  if (!filter) return {};
  const auto work = [netfilter = worker.netfilter, filter = *filter] { return netfilter->DeleteConntrack(filter); };
  return worker.queue->Promise<uint32_t>(
      value.Env(), work, [](Napi::Env env, uint32_t& count) -> Napi::Value { return Napi::Number::New(env, count); });
}

Napi::Value ListConnections(const NetfilterWorker& worker, Napi::Value value) {
  std::vector<IpAddress> addresses;
  ForEach(value, "addresses", [&](Napi::Value element, const std::string& path) {
    const auto address =
        element.IsString() ? IpAddress::Parse(element.As<Napi::String>().Utf8Value()) : std::optional<IpAddress>();
    if (address) {
      addresses.push_back(*address);
    } else {
      Napi::TypeError::New(value.Env(), path + ": must be an IP address").ThrowAsJavaScriptException();
    }
  });
  if (value.Env().IsExceptionPending()) return {};
  using Bytes = std::vector<uint8_t>;
  const auto work = [netfilter = worker.netfilter, ends = ConntrackEnds(std::move(addresses))]() -> Result<Bytes> {
    auto entries = netfilter->ListConntrack(ends);
    if (!entries) return entries.Error();
    return Pack(*entries);
  };
  return worker.queue->Promise<Bytes>(value.Env(), work, [](Napi::Env env, Bytes& bytes) -> Napi::Value {
    return Napi::Buffer<uint8_t>::Copy(env, bytes.data(), bytes.size());
  });
}

Napi::Value DeleteConnections(const NetfilterWorker& worker, Napi::Value value) {
  std::optional<std::vector<ConntrackEntry>> entries;
  if (value.IsBuffer()) {
    const auto buffer = value.As<Napi::Buffer<uint8_t>>();
    entries = Unpack({buffer.Data(), buffer.Length()});
  }
  if (!entries) {
    Napi::TypeError::New(value.Env(), "connections: must be a buffer of connections").ThrowAsJavaScriptException();
    return {};
  }
  // Shared only because std::function must be copyable.
  const auto shared = std::make_shared<std::vector<ConntrackEntry>>(std::move(*entries));
  const auto work = [netfilter = worker.netfilter, shared] { return netfilter->DeleteConntrack(std::move(*shared)); };
  return worker.queue->Promise<uint32_t>(
      value.Env(), work, [](Napi::Env env, uint32_t& count) -> Napi::Value { return Napi::Number::New(env, count); });
}

Napi::Value ChangeElements(const NetfilterWorker& worker, Napi::Value value) {
  // Shared only because std::function must be copyable.
  const auto texts = std::make_shared<std::vector<TextChange>>();
  ForEach(value, "changes", [&](Napi::Value change, std::string path) {
    texts->push_back(ReadChange(ObjectReader(change, std::move(path))));
  });
  if (value.Env().IsExceptionPending()) return {};
  const auto work = [netfilter = worker.netfilter, texts] { return Change(*netfilter, *texts); };
  const auto convert = [](Napi::Env env, Changed& changed) { return ToResult(env, changed); };
  return worker.queue->Promise<Changed>(value.Env(), work, convert);
}

Napi::Value ReadGeneration(const NetfilterWorker& worker, Napi::Env env) {
  const auto work = [netfilter = worker.netfilter] { return netfilter->ReadGeneration(); };
  return worker.queue->Promise<uint32_t>(
      env, work, [](Napi::Env env, uint32_t& id) -> Napi::Value { return Napi::Number::New(env, id); });
}

}  // namespace podwire::netlink
