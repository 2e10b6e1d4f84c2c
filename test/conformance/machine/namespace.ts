import { readdirSync, readlinkSync, statSync } from 'node:fs';

import { canonicalCidr } from '../specification/addresses.js';
import { numberOf, objectsOf, parseJson, textOf, type JsonObject } from '../specification/json.js';
import { run } from './program.js';

/** An interface in the kernel. */
export interface KernelLink {
  readonly index: number;
  readonly name: string;
  readonly mac: string;
  readonly mtu: number;
  readonly isUp: boolean;
  /** Addresses with prefix length. */
  readonly addresses: readonly string[];
}

/** A route in the kernel. */
export interface KernelRoute {
  /** Destination with prefix length. */
  readonly dst: string;
  readonly dev: string;
  readonly gateway: string | undefined;
  /** Added by the kernel itself, with an address. */
  readonly isKernels: boolean;
  /** Text as `ip` prints it, without fields that change by themselves. */
  readonly text: string;
}

/** The state that only explicit changes affect: the kernel adds link-local addresses, and reports links as up, late. */
export function steadyText(links: readonly KernelLink[]): string {
  const lasting = links.map(({ index, name, mac, mtu, addresses }) => {
    const own = addresses.filter((address) => !address.startsWith('fe80:'));
    return [index, name, mac, mtu, ...own].join(' ');
  });
  return lasting.join('\n');
}

/** The objects of a namespace, read with one process, as every check reads them often. */
export interface Contents {
  readonly links: readonly KernelLink[];
  readonly routes: readonly KernelRoute[];
  /** One line each, as `ip rule` prints them. */
  readonly rules: readonly string[];
  /** Lines of the packet filter; none without `nft`. */
  readonly packetFilter: readonly string[];
}

/** Separates the parts of a shell's output. */
const SEPARATOR = '=== conformance ===';

const CONTENTS = [
  'ip -j address',
  'ip -j -4 route show table all',
  'ip -j -6 route show table all',
  'ip rule',
  'if command -v nft >/dev/null; then nft -s list ruleset; fi',
];

/** A network namespace, read with `ip`, which shares no code with any plugin. */
export class Namespace {
  readonly path: string;

  /** @param path - of the namespace's file */
  constructor(path: string) {
    this.path = path;
  }

  /** Runs a program inside. @throws Error with its standard error when it fails */
  run(program: string, ...args: readonly string[]): string {
    return run('nsenter', `--net=${this.path}`, program, ...args);
  }

  ip(...args: readonly string[]): string {
    return this.run('ip', ...args);
  }

  /** Runs commands of a shell, each of which has to succeed. @throws Error with their standard error */
  shell(...commands: readonly string[]): string {
    return this.run('sh', '-c', commands.join(' && '));
  }

  contents(): Contents {
    const parts = this.shell(CONTENTS.join(` && echo '${SEPARATOR}' && `)).split(SEPARATOR);
    const [links = '', routes4 = '', routes6 = '', rules = '', packetFilter = ''] = parts;
    return {
      links: readLinks(links),
      routes: [...readRoutes(routes4, 4), ...readRoutes(routes6, 6)],
      rules: linesOf(rules),
      packetFilter: linesOf(packetFilter),
    };
  }

  links(): readonly KernelLink[] {
    return readLinks(this.ip('-j', 'address'));
  }

  link(name: string): KernelLink | undefined {
    return this.links().find((link) => link.name === name);
  }

  /** Routes of all tables and both families, but for local and multicast ones. */
  routes(): readonly KernelRoute[] {
    return this.contents().routes;
  }

  /** IDs of the processes inside, as far as `/proc` shows them. */
  pids(): readonly string[] {
    const own = `net:[${statSync(this.path).ino}]`;
    return readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && namespaceOf(pid) === own);
  }
}

function namespaceOf(pid: string): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`);
  } catch {
    // It has ended.
    return undefined;
  }
}

function linesOf(text: string): readonly string[] {
  return text.split('\n').filter((line) => line.trim() !== '');
}

function readLinks(text: string): readonly KernelLink[] {
  return objectsOf(parseJson(text)).map((link) => ({
    index: numberOf(link.ifindex) ?? 0,
    name: textOf(link.ifname) ?? '',
    mac: textOf(link.address) ?? '',
    mtu: numberOf(link.mtu) ?? 0,
    isUp: Array.isArray(link.flags) && link.flags.includes('UP'),
    addresses: objectsOf(link.addr_info).flatMap(
      ({ local, prefixlen }) => canonicalCidr(`${textOf(local) ?? ''}/${numberOf(prefixlen) ?? -1}`) ?? [],
    ),
  }));
}

function readRoutes(text: string, family: number): readonly KernelRoute[] {
  const found = objectsOf(parseJson(text)).flatMap((route) => readRoute(route, family) ?? []);
  return found.filter(({ dst }) => !/^(fe80|ff00)::/.test(dst));
}

const KERNELS_OWN_TYPES = ['local', 'broadcast', 'multicast', 'anycast'];

function readRoute(route: JsonObject, family: number): KernelRoute | undefined {
  const type = textOf(route.type);
  if (type !== undefined && KERNELS_OWN_TYPES.includes(type)) return undefined;
  const dst = textOf(route.dst) ?? '';
  const everything = family === 4 ? '0.0.0.0/0' : '::/0';
  const bare = `${dst}/${family === 4 ? 32 : 128}`;
  const [dev, gateway] = [textOf(route.dev) ?? '', textOf(route.gateway)];
  const cidr = dst === 'default' ? everything : (canonicalCidr(dst) ?? canonicalCidr(bare) ?? dst);
  const table = textOf(route.table) ?? numberOf(route.table) ?? 'main';
  const words = [type, cidr, gateway && `via ${gateway}`, dev && `dev ${dev}`, `table ${table}`];
  const text = words.filter((word) => word !== undefined && word !== '').join(' ');
  return { dst: cidr, dev, gateway, isKernels: route.protocol === 'kernel', text };
}
