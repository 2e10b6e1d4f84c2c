import { canonicalAddress, canonicalCidr, familyOf } from './addresses.js';
import { isObject, listOf, numberOf, objectsOf, textOf, type JsonObject } from './json.js';
import { isAtLeast, type Version } from './versions.js';

/** The content of a result in any version. Addresses have their canonical spelling. */
export interface Result {
  readonly interfaces: readonly ResultInterface[];
  readonly ips: readonly ResultIp[];
  readonly routes: readonly ResultRoute[];
}

export interface ResultInterface {
  readonly name: string;
  readonly mac: string | undefined;
  /** Path of the container's network namespace; undefined for an interface of the node. */
  readonly sandbox: string | undefined;
  readonly mtu: number | undefined;
}

export interface ResultIp {
  readonly address: string;
  readonly gateway: string | undefined;
  /** Index into the interfaces. */
  readonly interface: number | undefined;
}

export interface ResultRoute {
  readonly dst: string;
  readonly gw: string | undefined;
}

const MAC = /^([0-9a-f]{2}:){5,}[0-9a-f]{2}$/i;

/** The faults in the form of a result in its version (section 5, Success, and the same of earlier releases). */
export function resultFaults(version: Version, value: unknown): readonly string[] {
  if (!isObject(value)) return ['standard output is not one JSON object, which a result is'];
  const forms = isAtLeast(version, '0.3.0') ? listFaults(version, value) : familyFaults(value);
  return [...versionFaults(version, value), ...forms, ...dnsFaults('dns', value.dns)];
}

export function readResult(version: Version, value: unknown): Result {
  if (!isObject(value)) return { interfaces: [], ips: [], routes: [] };
  if (!isAtLeast(version, '0.3.0')) return readFamilies(value);
  return {
    interfaces: objectsOf(value.interfaces).map((entry) => ({
      name: textOf(entry.name) ?? '',
      mac: textOf(entry.mac)?.toLowerCase(),
      sandbox: textOf(entry.sandbox),
      mtu: numberOf(entry.mtu),
    })),
    ips: objectsOf(value.ips).map((entry) => ({
      address: canonicalCidr(textOf(entry.address) ?? '') ?? '',
      gateway: canonicalAddress(textOf(entry.gateway) ?? ''),
      interface: numberOf(entry.interface),
    })),
    routes: objectsOf(value.routes).map(readRoute),
  };
}

function readFamilies(value: JsonObject): Result {
  const families = [value.ip4, value.ip6].filter(isObject);
  return {
    interfaces: [],
    ips: families.map((family) => ({
      address: canonicalCidr(textOf(family.ip) ?? '') ?? '',
      gateway: canonicalAddress(textOf(family.gateway) ?? ''),
      interface: undefined,
    })),
    routes: families.flatMap((family) => objectsOf(family.routes).map(readRoute)),
  };
}

function readRoute(route: JsonObject): ResultRoute {
  return { dst: canonicalCidr(textOf(route.dst) ?? '') ?? '', gw: canonicalAddress(textOf(route.gw) ?? '') };
}

function versionFaults(version: Version, value: JsonObject): readonly string[] {
  if (value.cniVersion === undefined && version === '0.1.0') return [];
  return value.cniVersion === version
    ? []
    : [`cniVersion is ${JSON.stringify(value.cniVersion)}, the request has "${version}"`];
}

/** 0.1.0 and 0.2.0: one object per family. */
function familyFaults(value: JsonObject): readonly string[] {
  const families = (['ip4', 'ip6'] as const).filter((key) => value[key] !== undefined && value[key] !== null);
  const foreign = ['ips', 'interfaces', 'routes'].filter((key) => key in value);
  return [
    ...(families.length === 0 ? ['has neither ip4 nor ip6'] : []),
    ...foreign.map((key) => `${key} came with 0.3.0`),
    ...families.flatMap((key) => familyFault(key, value[key])),
  ];
}

function familyFault(key: 'ip4' | 'ip6', value: unknown): readonly string[] {
  if (!isObject(value)) return [`${key} is no object`];
  const family = key === 'ip4' ? 4 : 6;
  return [
    ...cidrFaults(`${key}.ip`, value.ip, family),
    ...(value.gateway === undefined ? [] : addressFaults(`${key}.gateway`, value.gateway)),
    ...routesFaults(`${key}.routes`, value.routes, '0.2.0'),
  ];
}

/** 0.3.0 and later: lists of interfaces, addresses and routes. */
function listFaults(version: Version, value: JsonObject): readonly string[] {
  const foreign = ['ip4', 'ip6'].filter((key) => key in value);
  const interfaces = arrayFaults('interfaces', value.interfaces);
  const count = listOf(value.interfaces).length;
  return [
    ...foreign.map((key) => `${key} went with 0.3.0`),
    ...interfaces,
    ...arrayFaults('ips', value.ips),
    ...objectsOf(value.interfaces).flatMap((entry, index) => interfaceFaults(`interfaces[${index}]`, entry)),
    ...objectsOf(value.ips).flatMap((entry, index) => ipFaults(`ips[${index}]`, entry, { version, count })),
    ...routesFaults('routes', value.routes, version),
  ];
}

function arrayFaults(path: string, value: unknown): readonly string[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) return [`${path} is no list`];
  return value.flatMap((entry, index) => (isObject(entry) ? [] : [`${path}[${index}] is no object`]));
}

function interfaceFaults(path: string, entry: JsonObject): readonly string[] {
  const faults: string[] = [];
  if (textOf(entry.name) === undefined) faults.push(`${path}.name is missing`);
  if (entry.mac !== undefined && entry.mac !== '' && !MAC.test(textOf(entry.mac) ?? '')) {
    faults.push(`${path}.mac is no hardware address`);
  }
  for (const key of ['sandbox', 'socketPath', 'pciID']) {
    if (entry[key] !== undefined && typeof entry[key] !== 'string') faults.push(`${path}.${key} is not a text`);
  }
  if (entry.mtu !== undefined && !isCount(entry.mtu)) faults.push(`${path}.mtu is no unsigned integer`);
  return faults;
}

interface IpContext {
  readonly version: Version;
  /** The number of interfaces. */
  readonly count: number;
}

function ipFaults(path: string, entry: JsonObject, { version, count }: IpContext): readonly string[] {
  const faults = [...cidrFaults(`${path}.address`, entry.address)];
  const family = familyOf(textOf(entry.address) ?? '');
  if (isAtLeast(version, '1.0.0')) {
    if ('version' in entry) faults.push(`${path}.version went with 1.0.0`);
  } else if (entry.version !== String(family)) {
    faults.push(`${path}.version is ${JSON.stringify(entry.version)} and not "${family}"`);
  }
  if (entry.gateway !== undefined) faults.push(...addressFaults(`${path}.gateway`, entry.gateway));
  const index = entry.interface;
  if (index !== undefined && (!isCount(index) || index >= count)) {
    faults.push(`${path}.interface is ${JSON.stringify(index)}, and there are ${count} interfaces`);
  }
  return faults;
}

/** Attributes of routes that 1.1.0 added, all numbers. */
const ROUTE_NUMBERS = ['mtu', 'advmss', 'priority', 'table', 'scope'] as const;
const MAX_SCOPE = 255;

function routesFaults(path: string, value: unknown, version: Version): readonly string[] {
  const faults = [...arrayFaults(path, value)];
  objectsOf(value).forEach((route, index) => {
    faults.push(...cidrFaults(`${path}[${index}].dst`, route.dst));
    if (route.gw !== undefined) faults.push(...addressFaults(`${path}[${index}].gw`, route.gw));
    for (const key of ROUTE_NUMBERS) {
      if (route[key] === undefined) continue;
      if (!isAtLeast(version, '0.3.0')) faults.push(`${path}[${index}].${key} is unknown to ${version}`);
      else if (!isCount(route[key]) || (key === 'scope' && route[key] > MAX_SCOPE)) {
        faults.push(`${path}[${index}].${key} is out of range`);
      }
    }
  });
  return faults;
}

function dnsFaults(path: string, value: unknown): readonly string[] {
  if (value === undefined) return [];
  if (!isObject(value)) return [`${path} is no object`];
  const lists = ['nameservers', 'search', 'options'].filter((key) => {
    const list = value[key];
    return list !== undefined && !(Array.isArray(list) && list.every((entry) => typeof entry === 'string'));
  });
  const faults = lists.map((key) => `${path}.${key} is no list of texts`);
  return value.domain === undefined || typeof value.domain === 'string'
    ? faults
    : [...faults, `${path}.domain is not a text`];
}

function cidrFaults(path: string, value: unknown, family?: 4 | 6): readonly string[] {
  const cidr = typeof value === 'string' ? canonicalCidr(value) : undefined;
  if (cidr === undefined) return [`${path} is ${JSON.stringify(value)}, no address in CIDR notation`];
  return family !== undefined && familyOf(cidr) !== family ? [`${path} is of the other family`] : [];
}

function addressFaults(path: string, value: unknown): readonly string[] {
  const isAddress = typeof value === 'string' && canonicalAddress(value) !== undefined;
  return isAddress ? [] : [`${path} is ${JSON.stringify(value)}, no address`];
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0;
}
