import { familyOf, type Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import { hasResultMtu, SUPPORTED_VERSIONS, type CniVersion } from './version.js';

/** Input of {@link addResult}. */
export interface AddOutcome {
  readonly cniVersion: CniVersion;
  readonly hostInterface: CreatedInterface;
  readonly podInterface: CreatedInterface;
  /** The pod's addresses as CIDRs of full length. */
  readonly addresses: readonly string[];
  readonly routes: readonly ResultRoute[];
  /** DNS settings that came with the addresses. */
  readonly dns?: unknown;
  /** Result of the previous plugins of the chain. */
  readonly prevResult: Result | undefined;
}

/** An interface that ADD created. */
export interface CreatedInterface {
  readonly name: string;
  /** MAC address, lower case with colons. */
  readonly mac: string;
  /** Path of its network namespace; absent for the node's own. */
  readonly sandbox?: string;
  /** MTU in bytes. */
  readonly mtu: number;
}

const EMPTY_RESULT: Result = { interfaces: [], ips: [], routes: [], rest: {} };

/**
 * The result of a successful ADD, appended to prevResult, in the form of the configuration's version. No field is null
 * or empty, as some readers fail on both.
 *
 * It has no gateway and no default route, as Calico's: the next hop 169.254.1.1 belongs to no host and is reachable only
 * from the pod's interface, so a chained plugin that used it elsewhere would add a dead route. Plugins that usually follow
 * (`portmap`, `bandwidth`, `tuning`, `firewall`) read only interfaces and addresses.
 */
export function addResult({ prevResult = EMPTY_RESULT, ...outcome }: AddOutcome) {
  const { cniVersion, hostInterface, podInterface, addresses, dns } = outcome;
  const { interfaces, ips, routes } = prevResult;
  const podInterfaceIndex = interfaces.length + 1;
  const result: Result = {
    ...prevResult,
    interfaces: [
      ...interfaces,
      interfaceForVersion(hostInterface, cniVersion),
      interfaceForVersion(podInterface, cniVersion),
    ],
    rest: dns === undefined ? prevResult.rest : { ...prevResult.rest, dns },
    ips: [...ips, ...addresses.map((address) => ({ interface: podInterfaceIndex, address }))],
    routes: [...routes, ...outcome.routes],
  };
  return writeResult(result, cniVersion);
}

/** Omits fields that the version lacks, as its readers may reject unknown fields. */
function interfaceForVersion({ mtu, ...described }: CreatedInterface, cniVersion: CniVersion): ResultInterface {
  return hasResultMtu(cniVersion) ? { ...described, mtu } : described;
}

/**
 * Reads and writes results in all forms since CNI 0.1.0. Unknown fields are passed through.
 *
 * | Versions     | Form                                                                                                   |
 * | ------------ | ------------------------------------------------------------------------------------------------------ |
 * | 0.1.0, 0.2.0 | `ip4` and `ip6` with `ip`, `gateway` and `routes`: one address of a family, no interfaces                |
 * | 0.3.0–0.4.0  | `interfaces`, `ips` with their family as `version`, `routes`                                           |
 * | 1.0.0, 1.1.0 | the same without `version`; 1.1.0 has `mtu`, `socketPath` and `pciID` of interfaces, and more of routes |
 */

const OPTIONAL_TEXT = z.string({ error: 'must be a string' }).optional();

const INTERFACE = z.looseObject(
  { name: z.string({ error: 'is missing' }), mac: OPTIONAL_TEXT, sandbox: OPTIONAL_TEXT },
  { error: 'must be an object' },
);
const IP = z.looseObject(
  {
    address: z.string({ error: 'is missing' }),
    interface: z.int({ error: 'must be a whole number' }).optional(),
  },
  { error: 'must be an object' },
);
const ROUTE = z.looseObject({ dst: z.string({ error: 'is missing' }) }, { error: 'must be an object' });

/** An interface: `name`, optionally `mac`, `sandbox`, `mtu`, `socketPath`, `pciID`. */
type ResultInterface = z.infer<typeof INTERFACE>;

/** An address as CIDR, optionally with the index of its interface and its `gateway`. */
export type ResultIp = z.infer<typeof IP>;

/** A route: `dst` as CIDR, optionally `gw` and the fields that 1.1.0 added. */
export type ResultRoute = z.infer<typeof ROUTE>;

/** A result of any version. */
export interface Result {
  readonly interfaces: readonly ResultInterface[];
  readonly ips: readonly ResultIp[];
  readonly routes: readonly ResultRoute[];
  /** Fields that are the same in all forms (`dns`), and unknown fields. */
  readonly rest: Readonly<Record<string, unknown>>;
}

/** An optional list. Go's encoder writes an unset list as null. */
function list<Item extends z.ZodType>(item: Item) {
  return z
    .array(item, { error: 'must be a list' })
    .nullish()
    .transform((items) => items ?? []);
}

const FORM = z.looseObject(
  { interfaces: list(INTERFACE), ips: list(IP), routes: list(ROUTE) },
  { error: 'must be an object' },
);

const OLD_IP = z
  .looseObject({ ip: z.string({ error: 'is missing' }), routes: list(ROUTE) }, { error: 'must be an object' })
  .nullish();

const OLD_FORM = z.looseObject({ ip4: OLD_IP, ip6: OLD_IP }, { error: 'must be an object' });

const STATED_VERSION = z.looseObject(
  {
    cniVersion: z
      .enum(['', ...SUPPORTED_VERSIONS], { error: `must be one of ${SUPPORTED_VERSIONS.join(', ')}` })
      .optional(),
  },
  { error: 'must be an object' },
);

/**
 * Schema of an optional result in the form of its `cniVersion`.
 * @param versionWhenAbsent - version of a result without `cniVersion`
 */
export function resultSchema(versionWhenAbsent: CniVersion) {
  return z.unknown().transform((value, context): Result | undefined => {
    if (value === undefined || value === null) return undefined;
    const stated = STATED_VERSION.safeParse(value);
    if (!stated.success) return addIssues(stated.error, context);
    const version = stated.data.cniVersion ?? '';
    if (isOld(version === '' ? versionWhenAbsent : version)) {
      const read = OLD_FORM.safeParse(value);
      return read.success ? fromOldForm(read.data) : addIssues(read.error, context);
    }
    const read = FORM.safeParse(value);
    return read.success ? fromForm(read.data) : addIssues(read.error, context);
  });
}

function addIssues(error: z.ZodError, context: z.RefinementCtx): never {
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

/** Versions compare as strings: each part has one digit. */
function isOld(version: CniVersion): boolean {
  return version < '0.3.0';
}

/** Whether addresses of the version state their family. */
function hasFamilies(version: CniVersion): boolean {
  return version < '1.0.0';
}

function fromForm({ interfaces, ips, routes, ...rest }: z.infer<typeof FORM>): Result {
  return { interfaces, ips: ips.map(withoutFamily), routes, rest: unknownFields(rest) };
}

function fromOldForm({ ip4, ip6, ...rest }: z.infer<typeof OLD_FORM>): Result {
  const both = [ip4, ip6].flatMap((each) => (each ? [each] : []));
  return {
    interfaces: [],
    ips: both.map((each) => ({ ...without(each, 'ip', 'routes'), address: each.ip })),
    routes: both.flatMap(({ routes }) => routes),
    rest: unknownFields(rest),
  };
}

/** Keys of any of the forms. */
const FORM_KEYS = ['cniVersion', 'interfaces', 'ips', 'routes', 'ip4', 'ip6'];

function unknownFields(rest: object): Record<string, unknown> {
  return without(rest, ...FORM_KEYS);
}

function without(object: object, ...keys: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(object).filter(([key]) => !keys.includes(key)));
}

function withoutFamily(ip: ResultIp): ResultIp {
  return { ...without(ip, 'version'), address: ip.address };
}

function withFamily(ip: ResultIp): ResultIp {
  return { version: `${familyOf(ip.address)}`, ...ip };
}

function withoutLaterFields(each: ResultInterface): ResultInterface {
  return { ...without(each, 'mtu', 'socketPath', 'pciID'), name: each.name };
}

function oldForm(result: Result): Record<string, unknown> {
  const [ip4, ip6] = [oldIp(result, 4), oldIp(result, 6)];
  if (!ip4 && !ip6) throw new RangeError('cannot convert: no valid IP addresses');
  return { ...(ip4 && { ip4 }), ...(ip6 && { ip6 }) };
}

function oldIp({ ips, routes }: Result, family: Family): Record<string, unknown> | undefined {
  const first = ips.find(({ address }) => familyOf(address) === family);
  if (!first) return undefined;
  const familyRoutes = routes
    .filter(({ dst }) => familyOf(dst) === family)
    .map(({ dst, gw }) => (gw === undefined ? { dst } : { dst, gw }));
  return {
    ip: first.address,
    ...without(first, 'address', 'interface'),
    ...(familyRoutes.length > 0 && { routes: familyRoutes }),
  };
}
