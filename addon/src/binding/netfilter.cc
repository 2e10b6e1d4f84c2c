#include "binding/netfilter.h"

#include <array>
#include <cerrno>
#include <functional>
#include <string>
#include <utility>

#include "binding/object_reader.h"
#include "binding/shape.h"
#include "object/set_field.h"

namespace podwire::netlink {

namespace {

// NF_* of linux/netfilter.h and NFT_* of linux/netfilter/nf_tables.h.
constexpr std::array<std::pair<const char*, int32_t>, 7> kVerdicts = {
    {{"drop", 0}, {"accept", 1}, {"continue", -1}, {"break", -2}, {"jump", -3}, {"goto", -4}, {"return", -5}}};

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

std::optional<Verdict> ReadVerdict(ObjectReader& reader) {
  const auto name = reader.OptionalText("verdict");
  const auto chain = reader.OptionalText("chain");
  if (!name) return std::nullopt;
  for (const auto& [known, code] : kVerdicts) {
    if (*name == known) return Verdict{code, chain};
  }
  reader.Fail("verdict", "a verdict");
  return std::nullopt;
}

TypedElement ReadElement(ObjectReader& reader) {
  TypedElement element;
  element.key = ReadTexts(reader, "key");
  element.data = ReadTexts(reader, "data");
  element.verdict = ReadVerdict(reader);
  element.timeout_ms = reader.OptionalNumber("timeoutMs");
  return element;
}

// The changes as the kernel takes them, and for each of their elements its position in JavaScript's list.
struct Changes {
  std::vector<ElementChange> changes;
  std::vector<std::vector<size_t>> sources;
};

void ReadChange(ObjectReader reader, Changes& read) {
  const auto set = ReadSet(reader.Object("set"));
  ElementChange change;
  change.deletes = reader.Flag("deletes");
  change.exclusive = reader.Flag("exclusive");
  change.list.name = set.name;
  std::vector<size_t> sources;
  size_t source = 0;
  ForEach(reader.Value("elements"), reader.Path("elements"), [&](Napi::Value value, const std::string& path) {
    ObjectReader element(value, path);
    const auto typed = ReadElement(element);
    if (element.Failed()) return;
    if (const auto wrong = AppendElement(set.type, typed, change.list.elements)) {
      element.Fail(wrong->path.c_str(), wrong->expected.c_str());
    }
    sources.resize(change.list.elements.size(), source++);
  });
  read.changes.push_back(std::move(change));
  read.sources.push_back(std::move(sources));
}

Napi::Value NumberOrNull(Napi::Env env, const std::optional<double>& number) {
  return number ? Napi::Value(Napi::Number::New(env, *number)) : env.Null();
}

Napi::Value ToResult(Napi::Env env, const ChangeResult& result, const Changes& changes) {
  auto outcomes = Napi::Array::New(env, result.outcomes.size());
  for (uint32_t position = 0; position < result.outcomes.size(); ++position) {
    const auto& [error, element] = result.outcomes[position];
    auto outcome = Napi::Object::New(env);
    outcome.Set("error", ToJsOrNull(env, error));
    outcome.Set("element", element ? Napi::Number::New(env, static_cast<double>(changes.sources[position][*element]))
                                   : env.Null());
    outcomes.Set(position, outcome);
  }
  auto object = Napi::Object::New(env);
  object.Set("outcomes", outcomes);
  object.Set("generation", NumberOrNull(env, result.generation));
  return object;
}

Napi::Array ToTexts(Napi::Env env, const std::vector<std::string>& texts) {
  auto array = Napi::Array::New(env, texts.size());
  for (uint32_t position = 0; position < texts.size(); ++position) {
    array.Set(position, Napi::String::New(env, texts[position]));
  }
  return array;
}

Napi::Value VerdictName(Napi::Env env, const std::optional<Verdict>& verdict) {
  if (!verdict) return env.Null();
  for (const auto& [name, code] : kVerdicts) {
    if (verdict->code == code) return Napi::String::New(env, name);
  }
  return Napi::String::New(env, std::to_string(verdict->code));
}

Napi::Value ToElements(Napi::Env env, std::vector<TypedElement>& elements) {
  auto array = Napi::Array::New(env, elements.size());
  for (uint32_t position = 0; position < elements.size(); ++position) {
    const Napi::HandleScope scope(env);
    const auto& element = elements[position];
    array.Set(position, Assemble(env, Shape::kElement,
                                 {{"key", ToTexts(env, element.key)},
                                  {"data", ToTexts(env, element.data)},
                                  {"verdict", VerdictName(env, element.verdict)},
                                  {"chain", TextOrNull(env, element.verdict ? element.verdict->chain : std::nullopt)},
                                  {"timeoutMs", NumberOrNull(env, element.timeout_ms)},
                                  {"expiresInMs", NumberOrNull(env, element.expiration_ms)}}));
  }
  return array;
}

}  // namespace

Napi::Value ChangeElements(const NetfilterWorker& worker, Napi::Value value) {
  // Shared only because std::function must be copyable.
  const auto read = std::make_shared<Changes>();
  ForEach(value, "changes",
          [&](Napi::Value change, std::string path) { ReadChange(ObjectReader(change, std::move(path)), *read); });
  if (value.Env().IsExceptionPending()) return {};
  const auto work = [netfilter = worker.netfilter, read] { return netfilter->ChangeElements(read->changes); };
  const auto convert = [read](Napi::Env env, ChangeResult& result) { return ToResult(env, result, *read); };
  return worker.queue->Promise<ChangeResult>(value.Env(), work, convert);
}

Napi::Value ListElements(const NetfilterWorker& worker, Napi::Value value) {
  const auto set = ReadSet(ObjectReader(value, "set"));
  if (value.Env().IsExceptionPending()) return {};
  using Elements = std::vector<TypedElement>;
  const auto work = [netfilter = worker.netfilter, set]() -> Result<Elements> {
    auto listed = netfilter->ListElements(set.name);
    if (!listed) return listed.Error();
    auto elements = TypedElements(set.type, std::move(*listed));
    if (!elements) return KernelError{EINVAL, "the set has keys or values of other types"};
    return std::move(*elements);
  };
  return worker.queue->Promise<Elements>(value.Env(), work, ToElements);
}

Napi::Value ReadGeneration(const NetfilterWorker& worker, Napi::Env env) {
  const auto work = [netfilter = worker.netfilter] { return netfilter->ReadGeneration(); };
  return worker.queue->Promise<uint32_t>(
      env, work, [](Napi::Env env, uint32_t& id) -> Napi::Value { return Napi::Number::New(env, id); });
}

}  // namespace podwire::netlink
