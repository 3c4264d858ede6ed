#include "graph/json_reader.h"

#include <cmath>
#include <unordered_set>
#include <utility>

#include "graph/error.h"

namespace poet::json {
namespace {

// A pass over the text that builds nothing: nesting and repeated keys. (The library's parser takes
// a callback as well, but then goes through the whole list again at the end of each object in it.)
class Guard : public nlohmann::json_sax<Json> {
 public:
  explicit Guard(std::string_view what) : what_(what) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return start(false); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return start(true); }
  bool end_array() override { return end(); }
  bool key(string_t& key) override {
    Level& object = levels_.back();
    POET_CHECK_AS(FormatError, object.keys.insert(key).second, what_, ": the key \"", key,
                  "\" stands twice in one object; the file is damaged");
    object.key = key;
    return true;
  }
  // The parser that builds the structure says it better; but not where.
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

  // Where it stopped, as "ops[3].seconds".
  std::string path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (level.is_list) {
        path += detail::message("[", level.index, "]");
      } else if (!level.key.empty()) {
        path += (path.empty() ? "" : ".") + level.key;
      }
    }
    return path;
  }

 private:
  struct Level {
    bool is_list = false;
    std::unordered_set<std::string> keys;  // of an object
    std::string key;                       // the latest
    int64_t index = 0;                     // of a list: of what comes next
  };

  bool checkDepth() const {
    POET_CHECK_AS(FormatError, levels_.size() <= static_cast<size_t>(kMaxDepth), what_,
                  ": nested more than ", kMaxDepth, " levels deep; this is not a ", what_, " file");
    return true;
  }
  bool value() {
    checkDepth();
    if (!levels_.empty()) ++levels_.back().index;
    return true;
  }
  bool start(bool is_list) {
    checkDepth();
    levels_.emplace_back().is_list = is_list;
    return true;
  }
  bool end() {
    levels_.pop_back();
    return value();
  }

  std::string what_;
  std::vector<Level> levels_;  // those that are open
};

[[noreturn]] void wrongType(const std::string& where, const char* expected, const Json& got) {
  throw FormatError(detail::message(where, ": expected ", expected, ", got ", got.type_name()));
}

}  // namespace

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Json parse(std::string_view text, std::string_view what) {
  Guard guard(what);
  Json::sax_parse(text.begin(), text.end(), &guard);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..." without the library's
    // own label.
    std::string reason = error.what();
    const size_t label_end = reason.find("] ");
    if (label_end != std::string::npos) reason.erase(0, label_end + 2);
    const std::string path = guard.path();
    throw FormatError(detail::message(what, ": not valid JSON, or cut short",
                                      path.empty() ? "" : ", at " + path, ": ", reason));
  }
}

void checkHeader(const Json& document, std::string_view format, int version) {
  POET_CHECK_AS(FormatError, document.is_object(), format,
                ": expected a JSON object with \"format\": \"", format, "\", got ",
                document.type_name());
  const auto name = document.find("format");
  POET_CHECK_AS(
      FormatError,
      name != document.end() && name->is_string() && name->get_ref<const std::string&>() == format,
      format, ": expected \"format\": \"", format, "\", got ",
      name == document.end()
          ? std::string("nothing")
          : name->dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60),
      "; this is not a ", format, " file");
  const auto number = document.find("version");
  POET_CHECK_AS(FormatError, number != document.end() && number->is_number_integer(), format,
                ": \"version\" is missing or not an integer");
  POET_CHECK_AS(FormatError, *number == version, format, ": version ", number->dump(),
                " cannot be read; this build of poet reads version ", version);
}

int64_t asInteger(const Json& json, const std::string& where, int64_t least, int64_t greatest) {
  if (!json.is_number_integer()) wrongType(where, "an integer", json);
  const bool too_large =
      json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t number = too_large ? greatest : json.get<int64_t>();
  POET_CHECK_AS(FormatError, !too_large && number >= least && number <= greatest, where,
                ": expected an integer in [", least, ", ", greatest, "], got ", json.dump());
  return number;
}

double asNumber(const Json& json, const std::string& where) {
  if (!json.is_number()) wrongType(where, "a number", json);
  const double number = json.get<double>();
  POET_CHECK_AS(FormatError, std::isfinite(number), where, ": expected a finite number");
  return number;
}

const std::string& asText(const Json& json, const std::string& where) {
  if (!json.is_string()) wrongType(where, "a string", json);
  return json.get_ref<const std::string&>();
}

const Json::array_t& asList(const Json& json, const std::string& where) {
  if (!json.is_array()) wrongType(where, "a list", json);
  return json.get_ref<const Json::array_t&>();
}

ObjectReader::ObjectReader(const Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json.is_object()) wrongType(where_, "an object", json);
}

const Json* ObjectReader::find(const char* key) {
  known_.emplace(key);
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

const Json& ObjectReader::require(const char* key) {
  const Json* found = find(key);
  POET_CHECK_AS(FormatError, found != nullptr, where_, ": \"", key, "\" is missing");
  return *found;
}

int64_t ObjectReader::integer(const char* key, int64_t least, int64_t greatest) {
  return asInteger(require(key), path(key), least, greatest);
}

int64_t ObjectReader::integerOr(const char* key, int64_t missing, int64_t least, int64_t greatest) {
  const Json* found = find(key);
  return found == nullptr ? missing : asInteger(*found, path(key), least, greatest);
}

double ObjectReader::number(const char* key) { return asNumber(require(key), path(key)); }

double ObjectReader::numberOr(const char* key, double missing) {
  const Json* found = find(key);
  return found == nullptr ? missing : asNumber(*found, path(key));
}

std::string ObjectReader::text(const char* key) { return asText(require(key), path(key)); }

std::string ObjectReader::textOr(const char* key, std::string missing) {
  const Json* found = find(key);
  return found == nullptr ? std::move(missing) : asText(*found, path(key));
}

bool ObjectReader::flagOr(const char* key, bool missing) {
  const Json* found = find(key);
  if (found == nullptr) return missing;
  if (!found->is_boolean()) wrongType(path(key), "true or false", *found);
  return found->get<bool>();
}

uint64_t ObjectReader::hex(const char* key) {
  const std::string digits = text(key);
  const bool good =
      digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  POET_CHECK_AS(FormatError, good, path(key), ": expected 16 hexadecimal digits (0-9, a-f), got \"",
                digits.substr(0, 40), "\"");
  return std::stoull(digits, nullptr, 16);
}

std::vector<int64_t> ObjectReader::indices(const char* key, int64_t count) {
  std::vector<int64_t> result;
  const Json* found = find(key);
  if (found == nullptr) return result;
  const std::string where = path(key);
  const auto& list = asList(*found, where);
  result.reserve(list.size());
  for (const Json& entry : list) result.push_back(asInteger(entry, where, 0, count - 1));
  return result;
}

void ObjectReader::finish() const {
  for (const auto& [key, entry] : json_.items()) {
    POET_CHECK_AS(FormatError, known_.contains(key), where_, ": unknown field \"",
                  key.substr(0, 40), "\"; the file is damaged or comes from a newer poet");
  }
}

std::string toHex(uint64_t number) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; number >>= 4) text[i] = kDigits[number & 15];
  return text;
}

}  // namespace poet::json
