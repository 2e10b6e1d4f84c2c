import { join, resolve } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Validity } from '@podwire/shared/tls/authority';
import {
  AUTHORITY_CERTIFICATE,
  AuthorityDirectory,
  CLOCK_TOLERANCE_MS,
  type StoredAuthority,
} from '@podwire/shared/tls/authority-directory';
import { ROLES, type Role } from '@podwire/shared/tls/caller';

import { text, wholeNumber, type Form } from '../command-line/forms.js';
import { previewReport, YES } from '../command-line/options.js';
import { flag, option, type Input, type Option, type Verb } from '../command-line/verb.js';
import type { Fields, Report, Table } from '../output/report.js';
import { readOptional, writeFile, writeNewFile } from './certificate-files.js';

/** Time in RFC 3339 with seconds. */
const timeText = (ms: number): string => new Date(ms).toISOString().replace(/\.\d+Z$/, 'Z');

const DIRECTORY = option('--directory', text('DIR'), 'where the files are written; made with mode 0700');
const AUTHORITY = option(
  '--authority',
  text('DIR'),
  'directory with ca.crt and ca.key of an existing authority (the one in --directory, created if missing)',
);
const SERVER = flag('--server', "podwire-ipam's certificate for its network listener");

const NAME: Form<string> = {
  placeholder: 'NAME',
  read: (input) =>
    /^[A-Za-z0-9][A-Za-z0-9._@-]{0,252}$/.test(input)
      ? { ok: true, value: input }
      : {
          ok: false,
          fault: 'is not a name of letters, digits, ".", "_", "@" and "-" that begins with a letter or digit',
        },
};

function roleOption(role: Role, about: string): Option<string> {
  return { name: `--${role}`, form: NAME, repeated: true, about };
}

const ROLE_OPTIONS: Readonly<Record<Role, Option<string>>> = {
  node: roleOption('node', 'a node by its name in Kubernetes: for its dataplane and plugin'),
  operator: roleOption('operator', 'a person or program that may call everything'),
  reader: roleOption('reader', 'a person or program that may read everything'),
};

const DEFAULT_DAYS = 365;
const DAY_MS = 86_400_000;

const DAYS = option(
  '--days',
  wholeNumber('NUMBER', { min: 1, max: 3650 }),
  `life of each certificate in days, up to the end of the authority (${DEFAULT_DAYS})`,
);

export const certificatesCreate: Verb = {
  name: 'certificates create',
  about: 'make a certificate authority, and certificates of podwire-ipam, nodes, operators and readers',
  details:
    'An authority that is already in the directory is used again. Its key, ca.key, signs certificates for everything: keep it\n' +
    'apart from the machines that use the certificates. Files that exist are only replaced with --yes, the authority never.',
  options: [DIRECTORY, AUTHORITY, ...ROLES.map((role) => ROLE_OPTIONS[role]), DAYS],
  flags: [SERVER, YES],
  examples: [
    'certificates create --directory certificates --server --node worker-1 --operator alice',
    'certificates create --directory alice --authority /var/lib/podwire/authority --operator alice --days 30',
  ],
  run: async (input, { clock }) => {
    const directory = resolve(required(input));
    const authorityDirectory = resolve(input.get(AUTHORITY) ?? directory);
    const orders = ordersOf(input);
    const existing = await existingFiles(directory, orders);
    const execute = (isConfirmed: boolean) =>
      createAll({ directory, authorityDirectory, orders, isConfirmed, days: input.get(DAYS) }, clock);
    if (existing.length > 0 && !input.has(YES))
      return preview(existing, directory, input.toCommandLine(), () => execute(true));
    return execute(input.has(YES));
  },
};

interface Creation {
  readonly directory: string;
  readonly authorityDirectory: string;
  readonly orders: readonly Order[];
  /** Whether existing files are replaced. */
  readonly isConfirmed: boolean;
  readonly days: number | undefined;
}

async function createAll(creation: Creation, clock: Clock): Promise<Report> {
  const { directory, authorityDirectory, orders, isConfirmed, days } = creation;
  const stored = await openAuthority(authorityDirectory, authorityDirectory === directory, clock.nowMs());
  const validity = validityOf(stored, days, clock.nowMs());
  if (authorityDirectory !== directory) await copyAuthority(stored, directory);
  const destination = { directory, validity, isConfirmed };
  for (const order of orders) await issue(stored, order, destination);
  return reportOf({ ...destination, stored, orders });
}

interface OpenedAuthority extends StoredAuthority {
  /** Whether it was made now. */
  readonly isNew: boolean;
}

/**
 * The authority of a directory; made where there is none.
 * @param mayCreate - whether an authority may be made
 * @throws Failure INVALID_REQUEST where it cannot be used or made
 */
async function openAuthority(path: string, mayCreate: boolean, nowMs: number): Promise<OpenedAuthority> {
  const refusal = (reason: string, cause?: unknown): Failure =>
    new Failure('INVALID_REQUEST', `authority in ${path}: ${reason}`, { cause });
  const directory = new AuthorityDirectory(path, refusal);
  const stored = await directory.read();
  if (stored && stored.authority.untilMs <= nowMs) {
    const end = timeText(stored.authority.untilMs);
    throw refusal(`${AUTHORITY_CERTIFICATE} expired at ${end}; use another directory`);
  }
  if (stored) return { ...stored, isNew: false };
  if (!mayCreate) throw refusal(`${AUTHORITY_CERTIFICATE} does not exist; restore it, or use another directory`);
  const created = await directory.create(nowMs);
  if (!created) throw refusal('another command makes an authority there; repeat the command');
  return { ...created, isNew: true };
}

/** A certificate to issue. */
interface Order {
  /** Name of its files, without `.crt` and `.key`. */
  readonly file: string;
  /** Role; undefined for podwire-ipam's own. */
  readonly role: Role | undefined;
  readonly name: string;
}

const SERVER_ORDER: Order = { file: 'podwire-ipam', role: undefined, name: 'podwire-ipam' };

/** @throws Failure INVALID_REQUEST where nothing is ordered */
function ordersOf(input: Input): Order[] {
  const clients = ROLES.flatMap((role) =>
    [...new Set(input.all(ROLE_OPTIONS[role]))].map((name) => ({ file: `${role}-${name}`, role, name })),
  );
  const orders = [...(input.has(SERVER) ? [SERVER_ORDER] : []), ...clients];
  const options = [SERVER.name, ...ROLES.map((role) => `${ROLE_OPTIONS[role].name} NAME`)];
  if (orders.length === 0)
    throw new Failure('INVALID_REQUEST', `certificates: none is requested; add ${options.join(' or ')}`);
  return orders;
}

function required(input: Input): string {
  const directory = input.get(DIRECTORY);
  if (directory !== undefined) return directory;
  throw new Failure('INVALID_REQUEST', `${DIRECTORY.name}: is missing; set it to the directory for the files`);
}

const filesOf = ({ file }: Order): readonly [key: string, certificate: string] => [`${file}.key`, `${file}.crt`];

async function existingFiles(directory: string, orders: readonly Order[]): Promise<string[]> {
  const existing: string[] = [];
  for (const name of orders.flatMap(filesOf)) {
    if ((await readOptional(join(directory, name))) !== undefined) existing.push(name);
  }
  return existing;
}

function preview(
  existing: readonly string[],
  directory: string,
  command: string,
  execute: () => Promise<Report>,
): Report {
  const table: Table = {
    kind: 'table',
    title: `existing files in ${directory}, which would be replaced`,
    columns: ['FILE'],
    rows: existing.map((name) => [name]),
    none: '',
  };
  const data = () => ({ directory, replaced: [...existing] });
  return previewReport({ sections: [table], data }, command, execute);
}

/** @throws Failure INVALID_REQUEST for more days than the authority has left */
function validityOf({ authority }: StoredAuthority, days: number | undefined, nowMs: number): Validity {
  const endMs = authority.untilMs;
  const untilMs = nowMs + (days ?? DEFAULT_DAYS) * DAY_MS;
  if (days !== undefined && untilMs > endMs) {
    const most = Math.floor((endMs - nowMs) / DAY_MS);
    throw new Failure(
      'INVALID_REQUEST',
      `--days ${days}: the authority ends at ${timeText(endMs)}; use at most ${most}`,
    );
  }
  return { fromMs: nowMs - CLOCK_TOLERANCE_MS, untilMs: Math.min(untilMs, endMs) };
}

/** @throws Failure INVALID_REQUEST where the directory has another authority */
async function copyAuthority({ certificates }: StoredAuthority, directory: string): Promise<void> {
  const present = await readOptional(join(directory, AUTHORITY_CERTIFICATE));
  if (present !== undefined && present.trim() !== certificates.trim())
    throw new Failure(
      'INVALID_REQUEST',
      `${join(directory, AUTHORITY_CERTIFICATE)}: is of another authority; use another ${DIRECTORY.name}`,
    );
  await writeFile(directory, AUTHORITY_CERTIFICATE, certificates);
}

interface Destination {
  readonly directory: string;
  readonly validity: Validity;
  /** Whether existing files may be replaced. */
  readonly isConfirmed: boolean;
}

async function issue({ authority }: StoredAuthority, order: Order, destination: Destination): Promise<void> {
  const { directory, validity, isConfirmed } = destination;
  const { role, name } = order;
  const issued = role ? await authority.issueClient(role, name, validity) : await authority.issueServer(validity);
  const [keyFile, certificateFile] = filesOf(order);
  if (isConfirmed) await writeFile(directory, keyFile, issued.key);
  else if (!(await writeNewFile(directory, keyFile, issued.key)))
    throw new Failure('INVALID_REQUEST', `${join(directory, keyFile)}: exists since now; repeat the command`);
  await writeFile(directory, certificateFile, issued.certificate);
}

interface Written extends Destination {
  readonly stored: OpenedAuthority;
  readonly orders: readonly Order[];
}

function reportOf({ stored, directory, orders, validity }: Written): Report {
  const end = timeText(stored.authority.untilMs);
  const until = timeText(validity.untilMs);
  const authorityRow = [AUTHORITY_CERTIFICATE, `authority, ${stored.isNew ? 'new' : 'existing'}`, end];
  const rows = orders.map((order) => [`${order.file}.crt, .key`, subjectOf(order), until]);
  const files: Table = {
    kind: 'table',
    title: `files in ${directory}`,
    columns: ['FILE', 'CERTIFICATE', 'VALID UNTIL'],
    rows: [authorityRow, ...rows],
    none: '',
  };
  const settings = orders.map((order) => ({ of: subjectOf(order), values: settingsOf(order, directory) }));
  const sections = settings.map(({ of, values }): Fields => ({
    kind: 'fields',
    title: `settings of ${of}`,
    fields: values,
  }));
  return {
    sections: [files, ...sections],
    data: () => ({
      directory,
      authority: { isNew: stored.isNew, validUntil: end },
      certificates: orders.map((order) => ({
        role: order.role ?? 'server',
        name: order.name,
        certificate: join(directory, `${order.file}.crt`),
        key: join(directory, `${order.file}.key`),
        validUntil: until,
        settings: Object.fromEntries(settingsOf(order, directory)),
      })),
    }),
  };
}

function subjectOf({ role, name }: Order): string {
  return role ? `${role} ${name}` : name;
}

/** The variables, or podwirectl's options, that the files of a certificate belong to. */
function settingsOf(order: Order, directory: string): (readonly [name: string, path: string])[] {
  const [key, certificate] = filesOf(order).map((name) => join(directory, name));
  const ca = join(directory, AUTHORITY_CERTIFICATE);
  const values = (names: { readonly ca: string; readonly certificate: string; readonly key: string }) =>
    [
      [names.ca, ca],
      [names.certificate, certificate ?? ''],
      [names.key, key ?? ''],
    ] as const;
  const ofProcess = (prefix: string) =>
    values({ ca: `${prefix}CA_FILE`, certificate: `${prefix}CERT_FILE`, key: `${prefix}KEY_FILE` });
  if (order.role === 'node') return [...ofProcess('PODWIRE_NODE_IPAM_TLS_')];
  if (order.role) return [...values({ ca: '--ipam-ca', certificate: '--ipam-cert', key: '--ipam-key' })];
  const prefix = 'PODWIRE_IPAM_TLS_';
  return [...values({ ca: `${prefix}CLIENT_CA_FILE`, certificate: `${prefix}CERT_FILE`, key: `${prefix}KEY_FILE` })];
}
