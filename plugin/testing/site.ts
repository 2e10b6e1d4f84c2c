// A node's two directories in a temporary one, and shims that are shell scripts with the real one's mark.
import { randomUUID } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';

import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { systemDisk, type Disk } from '../install/disk.js';
import { install, type InstallOptions } from '../install/install.js';
import { systemShimRunner } from '../install/shim-runner.js';
import type { InstallSpec } from '../install/spec.js';

/** A shim that answers VERSION, and STATUS as the file `ready` beside its folder says. */
export function scriptShim(release = '1'): Buffer {
  return Buffer.from(`#!/bin/sh
# podwire: CNI plugin; hands each call to podwire-node, release ${release}
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) test -e "\${0%/*}/../ready" && exit 0; echo '{"code":50,"msg":"IPAM is down"}'; exit 1 ;;
esac
`);
}

/** Another program of a chain, which supports these versions. */
export function scriptProgram(...versions: readonly string[]): string {
  return `#!/bin/sh\necho '${JSON.stringify({ cniVersion: versions.at(-1), supportedVersions: versions })}'\n`;
}

export class Site {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-install-'));
  readonly bin = join(this.folder, 'bin');
  readonly net = join(this.folder, 'net.d');
  readonly #output = new PassThrough();
  readonly log = createLogger({ service: 'test', level: 'info', destination: this.#output });
  readonly messages: string[] = [];

  constructor() {
    this.#output.on('data', (chunk: Buffer) => {
      for (const line of chunk.toString().trimEnd().split('\n')) this.messages.push(JSON.parse(line).msg);
    });
  }

  spec(changes: Partial<InstallSpec> = {}): InstallSpec {
    return {
      binaryDirectory: this.bin,
      configDirectory: this.net,
      runtimeBinaryDirectory: this.bin,
      shim: scriptShim(),
      binaries: ['podwire', 'podwire-ipam'],
      updatesBinaries: true,
      programs: [],
      conflistName: '10-podwire.conflist',
      conflist: { cniVersion: '1.0.0', cniVersions: ['1.0.0', '1.1.0'], name: 'net', plugins: [{ type: 'podwire' }] },
      conflistMode: 0o600,
      oldConfName: undefined,
      ...changes,
    };
  }

  options(changes: Partial<InstallOptions> = {}): InstallOptions {
    return {
      disk: systemDisk(randomUUID),
      runner: systemShimRunner(systemClock),
      clock: systemClock,
      log: this.log,
      signal: new AbortController().signal,
      scope: 'all',
      replaces: false,
      waitMs: undefined,
      ...changes,
    };
  }

  install(spec: Partial<InstallSpec> = {}, options: Partial<InstallOptions> = {}): Promise<readonly string[]> {
    return install(this.spec(spec), this.options(options));
  }

  write(path: string, content: string | Buffer, mode = 0o644): void {
    mkdirSync(join(this.folder, path, '..'), { recursive: true });
    writeFileSync(join(this.folder, path), content, { mode });
  }

  read(path: string): string | undefined {
    const full = join(this.folder, path);
    return existsSync(full) ? readFileSync(full, 'utf8') : undefined;
  }

  json(path: string): unknown {
    return JSON.parse(this.read(path) ?? 'null');
  }

  mode(path: string): string {
    return (statSync(join(this.folder, path)).mode & 0o7777).toString(8);
  }

  /** The runtime's own program, which a node has. */
  addLoopback(): void {
    this.write('bin/loopback', scriptProgram('1.0.0'), 0o755);
  }

  /** Everything in the two directories but the loopback program, with its text and mode. */
  state(): Record<string, string> {
    const entries = ['bin', 'net.d'].flatMap((directory) =>
      existsSync(join(this.folder, directory))
        ? readdirSync(join(this.folder, directory)).map((name) => `${directory}/${name}`)
        : [],
    );
    const own = entries.filter((path) => path !== 'bin/loopback');
    return Object.fromEntries(own.map((path) => [path, `${this.mode(path)} ${this.read(path)}`]));
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Effect of a step of a {@link Disk}; steps are counted from 0. */
type AtStep = (step: number) => Promise<void>;

/** A disk on which something happens before each step. */
export function watchedDisk(disk: Disk, before: AtStep): Disk {
  let step = 0;
  const at = <Args extends readonly unknown[], Result>(run: (...args: Args) => Promise<Result>) => {
    return async (...args: Args): Promise<Result> => {
      await before(step++);
      return run(...args);
    };
  };
  return {
    inspect: at(disk.inspect),
    list: at(disk.list),
    makeDirectory: at(disk.makeDirectory),
    stage: at(disk.stage),
    commit: at(disk.commit),
    discard: at(disk.discard),
    link: at(disk.link),
    remove: at(disk.remove),
    sweep: at(disk.sweep),
  };
}
