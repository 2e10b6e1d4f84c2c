import { z } from 'zod';

import { hasResultMtu, SUPPORTED_VERSIONS, type CniVersion } from './version.js';

/** What ADD made, for the result. */
export interface Added {
  readonly cniVersion: CniVersion;
  readonly hostInterface: AddedInterface;
  readonly podInterface: AddedInterface;
  /** The pod's addresses as CIDRs of full length. */
  readonly addresses: readonly string[];
  /** DNS settings that came with the addresses. */
  readonly dns?: unknown;
  /** What the plugins before this one in the chain answered. */
  readonly prevResult: Result | undefined;
}

/** An interface that ADD made. */
export interface AddedInterface {
  readonly name: string;
  /** MAC address, lower case with colons. */
  readonly mac: string;
  /** Path of the network namespace that it is in; absent for the node's own. */
  readonly sandbox?: string;
  /** In bytes. */
  readonly mtu: number;
}

const NOTHING_BEFORE: Result = { interfaces: [], ips: [], routes: [], rest: {} };

/**
 * The result of a successful ADD, appended to prevResult, in the form of the configuration's version. No field is null
 * or empty: some readers fail on both.
 *
 * It has no gateway and no routes, as Calico's: the next hop 169.254.1.1 belongs to no host and is reachable only from
 * the pod's interface, so a chained plugin that used it elsewhere would add a dead route. Plugins that usually follow
 * (`portmap`, `bandwidth`, `tuning`, `firewall`) read only interfaces and addresses.
 */
export function addResult({ prevResult = NOTHING_BEFORE, ...added }: Added) {
  const { cniVersion, hostInterface, podInterface, addresses, dns } = added;
  const { interfaces, ips } = prevResult;
  const podInterfaceIndex = interfaces.length + 1;
  const result: Result = {
    ...prevResult,
    interfaces: [...interfaces, known(hostInterface, cniVersion), known(podInterface, cniVersion)],
    rest: dns === undefined ? prevResult.rest : { ...prevResult.rest, dns },
    ips: [...ips, ...addresses.map((address) => ({ interface: podInterfaceIndex, address }))],
  };
  return writeResult(result, cniVersion);
}

/** What the version has a field for: readers of earlier ones may refuse what they do not know. */
function known({ mtu, ...described }: AddedInterface, cniVersion: CniVersion): ResultInterface {
  return hasResultMtu(cniVersion) ? { ...described, mtu } : described;
}

/**
 * Results in the forms that CNI had since 0.1.0, read into one value and written from it. What is not looked into passes through.
 *
 * | Versions     | Form                                                                                                   |
 * | ------------ | ------------------------------------------------------------------------------------------------------ |
 * | 0.1.0, 0.2.0 | `ip4` and `ip6` with `ip`, `gateway` and `routes`: one address of a family, no interfaces                |
 * | 0.3.0–0.4.0  | `interfaces`, `ips` with their family as `version`, `routes`                                           |
 * | 1.0.0, 1.1.0 | the same without `version`; 1.1.0 has `mtu`, `socketPath` and `pciID` of interfaces, and more of routes |
 */

const OPTIONAL_TEXT = z.string({ error: 'is no text' }).optional();

const INTERFACE = z.looseObject(
  { name: z.string({ error: 'is missing' }), mac: OPTIONAL_TEXT, sandbox: OPTIONAL_TEXT },
  { error: 'is no object' },
);
const IP = z.looseObject(
  {
    address: z.string({ error: 'is missing' }),
    interface: z.int({ error: 'is no whole number' }).optional(),
  },
  { error: 'is no object' },
);
const ROUTE = z.looseObject({ dst: z.string({ error: 'is missing' }) }, { error: 'is no object' });

/** An interface: `name`, and where they are known `mac`, `sandbox`, `mtu`, `socketPath`, `pciID`. */
type ResultInterface = z.infer<typeof INTERFACE>;

/** An address as CIDR, with the place of its interface in the list of interfaces, and its `gateway` where it has one. */
export type ResultIp = z.infer<typeof IP>;

/** A route: `dst` as CIDR, and where they are given `gw` and what 1.1.0 added. */
export type ResultRoute = z.infer<typeof ROUTE>;

/** A result of any version. */
export interface Result {
  readonly interfaces: readonly ResultInterface[];
  readonly ips: readonly ResultIp[];
  readonly routes: readonly ResultRoute[];
  /** Fields that are the same in all forms (`dns`), and unknown fields. */
  readonly rest: Readonly<Record<string, unknown>>;
}

/** A list that may be missing. Go's encoder writes a list that was never made as null. */
function list<Item extends z.ZodType>(item: Item) {
  return z
    .array(item, { error: 'is no list' })
    .nullish()
    .transform((items) => items ?? []);
}

const FORM = z.looseObject(
  { interfaces: list(INTERFACE), ips: list(IP), routes: list(ROUTE) },
  { error: 'is no object' },
);

const OLD_IP = z
  .looseObject({ ip: z.string({ error: 'is missing' }), routes: list(ROUTE) }, { error: 'is no object' })
  .nullish();

const OLD_FORM = z.looseObject({ ip4: OLD_IP, ip6: OLD_IP }, { error: 'is no object' });

const STATED_VERSION = z.looseObject(
  {
    cniVersion: z
      .enum(['', ...SUPPORTED_VERSIONS], { error: `is none of ${SUPPORTED_VERSIONS.join(', ')}` })
      .optional(),
  },
  { error: 'is no object' },
);

/**
 * What reads a result that may be missing, in the form of the version that it states.
 * @param versionWhenAbsent - form of a result that states none
 */
export function resultSchema(versionWhenAbsent: CniVersion) {
  return z.unknown().transform((value, context): Result | undefined => {
    if (value === undefined || value === null) return undefined;
    const stated = STATED_VERSION.safeParse(value);
    if (!stated.success) return refuse(stated.error, context);
    const version = stated.data.cniVersion ?? '';
    if (isOld(version === '' ? versionWhenAbsent : version)) {
      const read = OLD_FORM.safeParse(value);
      return read.success ? fromOldForm(read.data) : refuse(read.error, context);
    }
    const read = FORM.safeParse(value);
    return read.success ? fromForm(read.data) : refuse(read.error, context);
  });
}

function refuse(error: z.ZodError, context: z.RefinementCtx): never {
  for (const { path, message } of error.issues) context.addIssue({ code: 'custom', path: [...path], message });
  return z.NEVER;
}

/**
 * Converts a result to the form of a version. 0.1.0 and 0.2.0 keep only the first address of each family, and routes of
 * families that have an address; later versions keep all addresses.
 * @throws RangeError when the form needs an address and there is none
 */
export function writeResult(result: Result, cniVersion: CniVersion): Record<string, unknown> {
  if (isOld(cniVersion)) return { cniVersion, ...oldForm(result), ...result.rest };
  const interfaces = hasFamilies(cniVersion) ? result.interfaces.map(withoutLaterFields) : result.interfaces;
  const ips = hasFamilies(cniVersion) ? result.ips.map(withFamily) : result.ips;
  return {
    cniVersion,
    ...(interfaces.length > 0 && { interfaces }),
    ...(ips.length > 0 && { ips }),
    ...(result.routes.length > 0 && { routes: result.routes }),
    ...result.rest,
  };
}

/** Versions sort by their text: each part has one digit. */
function isOld(version: CniVersion): boolean {
  return version < '0.3.0';
}

/** Whether addresses of the version state their family. */
function hasFamilies(version: CniVersion): boolean {
  return version < '1.0.0';
}

function fromForm({ interfaces, ips, routes, ...others }: z.infer<typeof FORM>): Result {
  return { interfaces, ips: ips.map(withoutFamily), routes, rest: unknownOf(others) };
}

function fromOldForm({ ip4, ip6, ...others }: z.infer<typeof OLD_FORM>): Result {
  const both = [ip4, ip6].flatMap((each) => (each ? [each] : []));
  return {
    interfaces: [],
    ips: both.map((each) => ({ ...without(each, 'ip', 'routes'), address: each.ip })),
    routes: both.flatMap(({ routes }) => routes),
    rest: unknownOf(others),
  };
}

/** Keys that have a meaning in one of the forms, and no place in another. */
const KEYS_OF_FORMS = ['cniVersion', 'interfaces', 'ips', 'routes', 'ip4', 'ip6'];

function unknownOf(others: object): Record<string, unknown> {
  return without(others, ...KEYS_OF_FORMS);
}

function without(object: object, ...keys: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(object).filter(([key]) => !keys.includes(key)));
}

function withoutFamily(ip: ResultIp): ResultIp {
  return { ...without(ip, 'version'), address: ip.address };
}

function withFamily(ip: ResultIp): ResultIp {
  return { version: isIpv6(ip.address) ? '6' : '4', ...ip };
}

function withoutLaterFields(each: ResultInterface): ResultInterface {
  return { ...without(each, 'mtu', 'socketPath', 'pciID'), name: each.name };
}

function oldForm(result: Result): Record<string, unknown> {
  const [ip4, ip6] = [oldIp(result, false), oldIp(result, true)];
  if (!ip4 && !ip6) throw new RangeError('cannot convert: no valid IP addresses');
  return { ...(ip4 && { ip4 }), ...(ip6 && { ip6 }) };
}

function oldIp({ ips, routes }: Result, wantsIpv6: boolean): Record<string, unknown> | undefined {
  const first = ips.find(({ address }) => isIpv6(address) === wantsIpv6);
  if (!first) return undefined;
  const own = routes
    .filter(({ dst }) => isIpv6(dst) === wantsIpv6)
    .map(({ dst, gw }) => (gw === undefined ? { dst } : { dst, gw }));
  return { ip: first.address, ...without(first, 'address', 'interface'), ...(own.length > 0 && { routes: own }) };
}

function isIpv6(address: string): boolean {
  return address.includes(':');
}
