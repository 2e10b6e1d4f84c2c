import { canonicalCidr } from '../specification/addresses.js';
import { numberOf, objectsOf, parseJson, textOf, type JsonObject } from '../specification/json.js';
import { run } from './program.js';

/** An interface as the kernel has it. */
export interface KernelLink {
  readonly index: number;
  readonly name: string;
  readonly mac: string;
  readonly mtu: number;
  readonly isUp: boolean;
  /** With prefix length. */
  readonly addresses: readonly string[];
}

/** A route as the kernel has it. */
export interface KernelRoute {
  /** With prefix length. */
  readonly dst: string;
  readonly dev: string;
  readonly gateway: string | undefined;
  /** Made by the kernel itself, with an address. */
  readonly isKernels: boolean;
  /** As `ip` prints it, without what changes by itself. */
  readonly text: string;
}

/** A network namespace, looked at with `ip`, which shares no code with any plugin. */
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

  links(): readonly KernelLink[] {
    return this.#read('address').map((link) => ({
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

  link(name: string): KernelLink | undefined {
    return this.links().find((link) => link.name === name);
  }

  /** Of all tables and both families, but for local and multicast ones. */
  routes(): readonly KernelRoute[] {
    const found = [4, 6].flatMap((family) =>
      this.#read(`-${family}`, 'route', 'show', 'table', 'all').flatMap((route) => readRoute(route, family) ?? []),
    );
    return found.filter(({ dst }) => !/^(fe80|ff00)::/.test(dst));
  }

  #read(...args: readonly string[]): readonly JsonObject[] {
    return objectsOf(parseJson(this.ip('-j', ...args)));
  }
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
