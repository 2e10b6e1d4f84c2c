import { execFile, execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  closeSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

/** A real etcd for tests: Debian's etcd-server, on ports of 127.0.0.1 that are its own, with its data in a temporary folder. */

export interface EtcdServerOptions {
  readonly name?: string;
  /** More flags: `--quota-backend-bytes=20000000`. */
  readonly flags?: readonly string[];
  /** Speaks TLS with clients, and asks for their certificates. */
  readonly tls?: TlsFiles;
  /** The other members, itself included, as `--initial-cluster` takes them. */
  readonly cluster?: string;
  readonly ports?: Ports;
}

interface Ports {
  readonly client: number;
  readonly peer: number;
}

/** Files of one certificate, with that of its authority. */
export interface TlsFiles {
  readonly ca: string;
  readonly cert: string;
  readonly key: string;
}

const START_TIMEOUT_MS = 45_000;

/** etcdctl's own times are two seconds for a connection and five for an answer, which a busy machine may take. */
const TIMEOUT_FLAGS = ['--dial-timeout=45s', '--command-timeout=45s'];

const CTL_ENV = { PATH: process.env.PATH ?? '', ETCDCTL_API: '3' };

/** Servers that a test has left running. They end with the process. */
const running = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

export class EtcdServer {
  readonly url: string;
  readonly ports: Ports;
  readonly directory: string;
  readonly #options: EtcdServerOptions;
  #child: ChildProcess | undefined;

  private constructor(options: EtcdServerOptions, ports: Ports) {
    this.#options = options;
    this.ports = ports;
    this.directory = mkdtempSync(join(tmpdir(), 'podwire-etcd-'));
    this.url = `${options.tls ? 'https' : 'http'}://127.0.0.1:${ports.client}`;
  }

  /** Starts one, and waits until it answers. */
  static async start(options: EtcdServerOptions = {}): Promise<EtcdServer> {
    const server = new EtcdServer(options, options.ports ?? (await freePorts()));
    await server.restart();
    return server;
  }

  /** Starts a cluster of members that know each other, and waits until each answers. */
  static async startCluster(size: number, flags: readonly string[] = []): Promise<EtcdServer[]> {
    const members = await Promise.all(
      Array.from({ length: size }, async (_, index) => ({ name: `member-${index}`, ports: await freePorts() })),
    );
    const cluster = members.map(({ name, ports }) => `${name}=http://127.0.0.1:${ports.peer}`).join(',');
    return Promise.all(members.map((member) => EtcdServer.start({ ...member, cluster, flags })));
  }

  /** Starts it again, on the same ports and data, and waits until it answers. */
  async restart(): Promise<void> {
    if (this.#child) throw new Error('etcd is running already');
    const log = openSync(this.#logFile, 'a');
    // The kernel ends it with the test, also when that is killed.
    const command = ['--pdeathsig', 'KILL', 'etcd', ...this.#arguments()];
    const child = spawn('setpriv', command, { stdio: ['ignore', log, log] });
    closeSync(log);
    this.#child = child;
    running.add(child);
    child.on('error', (error) => appendFileSync(this.#logFile, `${String(error)}\n`));
    child.on('close', () => running.delete(child));
    const deadlineMs = Date.now() + START_TIMEOUT_MS;
    while (!(await this.#answers())) {
      if (child.exitCode !== null || child.pid === undefined || Date.now() > deadlineMs)
        throw new Error(`etcd did not start:\n${readFileSync(this.#logFile, 'utf8').slice(-4000)}`);
      await sleep(30);
    }
  }

  /** Ends it as an operator would. Idempotent. */
  async stop(): Promise<void> {
    await this.#end('SIGTERM');
  }

  /** Ends it as a power failure would. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  /** Removes its data, as a new disk would. */
  wipe(): void {
    rmSync(this.#dataDirectory, { recursive: true, force: true });
  }

  /** Has the data of another, as one has that is restored from a copy. Neither may run. */
  takeDataOf(other: EtcdServer): void {
    this.wipe();
    cpSync(other.#dataDirectory, this.#dataDirectory, { recursive: true });
  }

  /** It stands still: connections stay, and nothing answers. */
  pause(): void {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error('etcd is not running');
    this.#child?.kill('SIGSTOP');
    // The signal was sent; a thread on the other processor may still answer.
    const deadlineMs = Date.now() + START_TIMEOUT_MS;
    while (!isStopped(pid)) if (Date.now() > deadlineMs) throw new Error('etcd does not stop');
  }

  resume(): void {
    this.#child?.kill('SIGCONT');
  }

  /** Forgets the history before a revision: the present one when none is given. */
  compact(revision = this.revision()): void {
    this.ctl('compact', String(revision), '--physical');
  }

  revision(): number {
    const answer: { header: { revision: number } } = JSON.parse(this.ctl('get', '/', '--write-out=json'));
    return answer.header.revision;
  }

  /** All keys with a prefix and their values. */
  dump(prefix: string): Map<string, string> {
    const answer: { kvs?: { key: string; value?: string }[] } = JSON.parse(
      this.ctl('get', '--prefix', prefix, '--write-out=json'),
    );
    const text = (base64 = ''): string => Buffer.from(base64, 'base64').toString();
    return new Map((answer.kvs ?? []).map(({ key, value }) => [text(key), text(value)]));
  }

  /** Runs etcdctl against this server. @throws Error with what it said */
  ctl(...args: readonly string[]): string {
    const patient = this.#ctlArguments([...args, ...TIMEOUT_FLAGS]);
    return execFileSync('etcdctl', patient, { encoding: 'utf8', env: CTL_ENV, stdio: 'pipe' });
  }

  /** Ends it, however it is, and removes its files. Idempotent. */
  async dispose(): Promise<void> {
    await this.kill();
    rmSync(this.directory, { recursive: true, force: true });
  }

  get #dataDirectory(): string {
    return join(this.directory, 'data');
  }

  get #logFile(): string {
    return join(this.directory, 'log');
  }

  async #answers(): Promise<boolean> {
    const args = this.#ctlArguments(['endpoint', 'health', '--command-timeout=1s']);
    try {
      await promisify(execFile)('etcdctl', args, { env: CTL_ENV });
      return true;
    } catch (error) {
      // With authentication enabled, etcdctl without a user gets this error; it proves that there is a leader.
      return String(error).includes('user name is empty');
    }
  }

  #ctlArguments(args: readonly string[]): string[] {
    const { tls } = this.#options;
    const flags = tls ? [`--cacert=${tls.ca}`, `--cert=${tls.cert}`, `--key=${tls.key}`] : [];
    return [`--endpoints=${this.url}`, ...flags, ...args];
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    const closed = once(child, 'close');
    child.kill(signal);
    if (signal !== 'SIGKILL') child.kill('SIGCONT');
    await closed;
  }

  #arguments(): string[] {
    const { name = 'etcd', tls, cluster, flags = [] } = this.#options;
    const peer = `http://127.0.0.1:${this.ports.peer}`;
    return [
      `--name=${name}`,
      `--data-dir=${this.#dataDirectory}`,
      `--listen-client-urls=${this.url}`,
      `--advertise-client-urls=${this.url}`,
      `--listen-peer-urls=${peer}`,
      `--initial-advertise-peer-urls=${peer}`,
      `--initial-cluster=${cluster ?? `${name}=${peer}`}`,
      '--logger=zap',
      // A single server need not wait for other members before it is the leader again.
      ...(cluster === undefined ? ['--heartbeat-interval=10', '--election-timeout=100'] : []),
      '--log-level=warn',
      ...(tls
        ? ['--client-cert-auth', `--trusted-ca-file=${tls.ca}`, `--cert-file=${tls.cert}`, `--key-file=${tls.key}`]
        : []),
      ...flags,
    ];
  }
}

/** Whether every thread of the process is stopped: state `T` of proc(5). */
function isStopped(pid: number): boolean {
  const tasks = `/proc/${pid}/task`;
  try {
    return readdirSync(tasks).every((id) => readFileSync(`${tasks}/${id}/stat`, 'utf8').includes(') T '));
  } catch {
    // A thread has ended between the two reads.
    return false;
  }
}

async function freePorts(): Promise<Ports> {
  const [client, peer] = await Promise.all([freePort(), freePort()]);
  return { client, peer };
}

/** etcd has to know the ports of all members before it starts, so they cannot be port 0. */
async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  server.close();
  await once(server, 'close');
  return address.port;
}

/** An authority with certificates for 127.0.0.1, made by `openssl` in a folder. */
export class CertificateAuthority {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
    mkdirSync(directory, { recursive: true });
    const subject = ['-subj', '/CN=authority', '-days', '2'];
    this.#openssl('req', '-x509', ...KEY, '-keyout', 'ca.key', '-out', 'ca.crt', ...subject);
  }

  /** @param name - the common name, which etcd takes for the user's */
  issue(name: string): TlsFiles {
    const extensions = ['-addext', 'subjectAltName=IP:127.0.0.1', '-addext', 'basicConstraints=CA:FALSE'];
    const signer = ['-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial', '-copy_extensions', 'copy', '-days', '2'];
    const request = ['-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', `/CN=${name}`, ...extensions];
    this.#openssl('req', ...KEY, ...request);
    this.#openssl('x509', '-req', '-in', `${name}.csr`, '-out', `${name}.crt`, ...signer);
    const file = (suffix: string): string => join(this.#directory, suffix);
    return { ca: file('ca.crt'), cert: file(`${name}.crt`), key: file(`${name}.key`) };
  }

  /** A certificate that has expired. */
  issueExpired(name: string): TlsFiles {
    const files = this.issue(name);
    const config = ['[ca]', 'default_ca = c', '[c]', 'database = index', 'rand_serial = yes', 'new_certs_dir = .'];
    const rules = ['default_md = sha256', 'policy = p', 'copy_extensions = copy', '[p]', 'commonName = supplied', ''];
    writeFileSync(join(this.#directory, 'ca.cnf'), [...config, ...rules].join('\n'));
    writeFileSync(join(this.#directory, 'index'), '');
    const signer = ['-batch', '-notext', '-config', 'ca.cnf', '-cert', 'ca.crt', '-keyfile', 'ca.key'];
    const days = ['-startdate', '20200101000000Z', '-enddate', '20200102000000Z'];
    this.#openssl('ca', ...signer, '-in', `${name}.csr`, '-out', `${name}.crt`, ...days);
    return files;
  }

  #openssl(...args: readonly string[]): void {
    execFileSync('openssl', args, { cwd: this.#directory, stdio: 'pipe' });
  }
}

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
