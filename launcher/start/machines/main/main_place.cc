#include "launcher/start/machines/main/main_place.h"

#include "runtime/printable.h"
#include "runtime/supervisor/protocol/json_fields.h"
#include "runtime/text/endpoint_text.h"

namespace accel::launcher {
namespace {

using supervisor::FieldError;
using supervisor::Json;

// Each member once, for both directions.
template <typename Place, typename Visit>
void each_part(Place& place, Visit&& visit) {
  visit("id", place.id);
  visit("host", place.host);
  visit("address", place.address);
  visit("port", place.port);
}

}  // namespace

std::string MainPlace::describe() const {
  return printable(host) + " (" + endpoint_text(printable(address), port) + ")";
}

std::string to_text(const MainPlace& place) {
  Json json = Json::object();
  each_part(place, [&](const char* name, const auto& member) {
    json[name] = supervisor::to_field(member);
  });
  if (place.has_coordinator) json["has_coordinator"] = true;
  return json.dump();
}

Result<MainPlace> main_place_from(std::string_view text) {
  return supervisor::decode_json(text, "the place of machine 0 in etcd", [](const Json& json) {
    MainPlace place;
    each_part(place,
              [&](const char* name, auto& member) { supervisor::read_member(json, name, member); });
    supervisor::read_new_member(json, "has_coordinator", place.has_coordinator);
    if (place.id.empty() || place.address.empty()) throw FieldError("has no id or no address");
    if (place.port == 0) throw FieldError("port is out of range");
    return place;
  });
}

}  // namespace accel::launcher
