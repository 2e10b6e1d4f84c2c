import { familyBits, parseAddress } from '@podwire/shared/net/address';
import { comparePrefixes, formatAddressOrPrefix, prefixOf, type Prefix } from '@podwire/shared/net/prefix';

import type { Reservation } from '../config.js';
import {
  field,
  isAbsent,
  keepCreateTime,
  readList,
  readObject,
  readOptionalText,
  readText,
  readTime,
  type PreviousState,
} from './fields.js';
import type { JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's IPReservation (projectcalico/api, pkg/apis/projectcalico/v3/ipreservation.go). */

export function decodeReservation(raw: JsonObject, name: RecordName & { kind: 'reservation' }): Reservation {
  const metadata = readObject(field(raw, 'metadata'));
  const created = field(metadata, 'creationTimestamp', 'metadata');
  const spec = readObject(field(raw, 'spec'));
  return {
    name: name.name,
    uid: readOptionalText(field(metadata, 'uid', 'metadata')) ?? '',
    createTimeMs: isAbsent(created) ? 0 : readTime(created),
    prefixes: readList(field(spec, 'reservedCIDRs', 'spec')).flatMap((source) => readReserved(readText(source))),
  };
}

/** Like Calico, accepts bare addresses, surrounding blanks and host bits, and skips unreadable entries. */
function readReserved(text: string): Prefix[] {
  const trimmed = text.trim();
  const address = parseAddress(trimmed);
  if (address) return [{ ...address, length: familyBits(address.family) }];
  const slash = trimmed.lastIndexOf('/');
  const host = parseAddress(trimmed.slice(0, slash));
  const length = /^\d{1,3}$/.test(trimmed.slice(slash + 1)) ? Number(trimmed.slice(slash + 1)) : -1;
  if (slash < 0 || !host || length < 0 || length > familyBits(host.family)) return [];
  return [prefixOf(host, length)];
}

export function encodeReservation(value: Reservation, previous: PreviousState<Reservation> | undefined): JsonObject {
  const raw = previous?.raw ?? {};
  const metadata = readObject(field(raw, 'metadata'));
  const spec = readObject(field(raw, 'spec'));
  const unchanged = previous !== undefined && samePrefixes(previous.value.prefixes, value.prefixes);
  return {
    kind: 'IPReservation',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    metadata: {
      ...metadata,
      name: value.name,
      uid: value.uid,
      creationTimestamp: keepCreateTime(value.createTimeMs, metadata.creationTimestamp),
    },
    spec: unchanged ? spec : { ...spec, reservedCIDRs: value.prefixes.map(formatAddressOrPrefix) },
  };
}

function samePrefixes(a: readonly Prefix[], b: readonly Prefix[]): boolean {
  return (
    a.length === b.length &&
    a.every((prefix, index) => {
      const other = b[index];
      return other !== undefined && comparePrefixes(prefix, other) === 0;
    })
  );
}
