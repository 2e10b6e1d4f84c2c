import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { KubernetesApi, SERVICE_ACCOUNT_DIRECTORY } from '@podwire/ipam/api-server/api';
import type { CalicoGroup } from '@podwire/ipam/engine/kubernetes/object-forms';
import { CertificateAuthority, EtcdServer, type TlsFiles } from '@podwire/ipam/engine/testing/etcd-server';
import { isArray, isObject, type Json } from '@podwire/ipam/records/json/json';

import { ROOT } from '../support/root.js';

export const PORT = 6443;
const START_TIMEOUT_MS = 90_000;

/** Token of the service account, which is an administrator. */
const TOKEN = 'token-1';

/** The group that the tests use: v3 has the definitions of the chart podwire-crds, or of the folder that the caller names. */
export const GROUP: CalicoGroup =
  process.env.API_SERVER_GROUP === 'v1' ? 'crd.projectcalico.org/v1' : 'projectcalico.org/v3';

/**
 * A real API server with its etcd, in a network namespace of the test (`npm run test:api-server`). The programs etcd,
 * kube-apiserver, kubectl and helm are on the PATH. Its service account is where the kubelet mounts one, so that
 * podwire-ipam finds the API server by the variables of {@link env}.
 */
export class KubeApiServer {
  readonly directory = mkdtempSync(join(tmpdir(), 'podwire-api-server-'));
  readonly etcd: EtcdServer;
  readonly #tls: TlsFiles;
  #child: ChildProcess | undefined;

  private constructor(etcd: EtcdServer) {
    this.etcd = etcd;
    this.#tls = new CertificateAuthority(join(this.directory, 'tls')).issue('kube-apiserver');
    execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', '/run']);
    mkdirSync(SERVICE_ACCOUNT_DIRECTORY, { recursive: true });
    const account = { 'ca.crt': readFileSync(this.#tls.ca), token: TOKEN, namespace: 'podwire' };
    for (const [name, content] of Object.entries(account))
      writeFileSync(join(SERVICE_ACCOUNT_DIRECTORY, name), content);
    writeFileSync(join(this.directory, 'tokens'), `${TOKEN},admin,1,"system:masters"\n`);
    execFileSync('openssl', ['genrsa', '-out', join(this.directory, 'accounts.key'), '2048'], { stdio: 'ignore' });
  }

  /** Starts it with the definitions of {@link GROUP}, the namespace `podwire` and Nodes of these names. */
  static async start(nodes: readonly string[]): Promise<KubeApiServer> {
    const server = new KubeApiServer(await EtcdServer.start({ flags: ['--unsafe-no-fsync'] }));
    await server.restart();
    const manifests = [
      { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'podwire' } },
      ...nodes.map((name) => ({ apiVersion: 'v1', kind: 'Node', metadata: { name } })),
    ];
    server.apply(JSON.stringify({ apiVersion: 'v1', kind: 'List', items: manifests }));
    await server.#define();
    return server;
  }

  /** Variables of a process in a pod. */
  get env(): Record<string, string> {
    return { KUBERNETES_SERVICE_HOST: '127.0.0.1', KUBERNETES_SERVICE_PORT: String(PORT) };
  }

  connect(): KubernetesApi {
    return KubernetesApi.inCluster(this.env);
  }

  async restart(): Promise<void> {
    const log = openSync(join(this.directory, 'log'), 'a');
    const file = (name: string): string => join(this.directory, name);
    this.#child = spawn(
      'setpriv',
      [
        ...['--pdeathsig', 'KILL', 'kube-apiserver', `--etcd-servers=${this.etcd.url}`, `--secure-port=${PORT}`],
        ...['--bind-address=127.0.0.1', '--advertise-address=192.0.2.1', '--endpoint-reconciler-type=none'],
        ...[`--tls-cert-file=${this.#tls.cert}`, `--tls-private-key-file=${this.#tls.key}`],
        ...[`--cert-dir=${this.directory}`, `--token-auth-file=${file('tokens')}`, '--authorization-mode=RBAC'],
        ...['--service-account-issuer=https://cluster.test', `--service-account-key-file=${file('accounts.key')}`],
        ...[`--service-account-signing-key-file=${file('accounts.key')}`, '--service-cluster-ip-range=10.96.0.0/16'],
      ],
      { stdio: ['ignore', log, log] },
    );
    await this.#until(() => this.kubectl('get', '--raw', '/readyz') === 'ok');
  }

  pause(): void {
    this.#child?.kill('SIGSTOP');
  }

  resume(): void {
    this.#child?.kill('SIGCONT');
  }

  /** Ends it like a crash. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (child?.exitCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  }

  /** @throws Error with the message of kubectl */
  kubectl(...args: readonly string[]): string {
    return this.#run('kubectl', args);
  }

  /** The manifests of a chart in `deploy/kubernetes`, for the namespace `podwire-system`. */
  render(chart: string, ...flags: readonly string[]): string {
    const folder = join(ROOT, 'deploy/kubernetes', chart);
    return this.#run('helm', ['template', 'podwire', folder, '--namespace', 'podwire-system', ...flags]);
  }

  /** A token of a service account in the namespace `podwire-system`, in a directory as the kubelet mounts one. */
  mountToken(account: string): string {
    const directory = join(this.directory, account);
    mkdirSync(directory, { recursive: true });
    const files = { 'ca.crt': readFileSync(this.#tls.ca), namespace: 'podwire-system' };
    const token = this.kubectl('create', 'token', account, '--namespace', 'podwire-system').trim();
    for (const [name, content] of Object.entries({ ...files, token })) writeFileSync(join(directory, name), content);
    return directory;
  }

  /** Creates or changes objects. @param manifest - JSON or YAML */
  apply(manifest: string): void {
    this.#run('kubectl', ['apply', '--server-side', '--force-conflicts', '-f', '-'], manifest);
  }

  /**
   * Writes that the API server has answered since its start, from its own counter `apiserver_request_total`.
   * @returns the number of each verb and resource, such as `PUT ipamblocks`; without the leader's lease
   */
  writes(): ReadonlyMap<string, number> {
    const counts = new Map<string, number>();
    for (const line of this.kubectl('get', '--raw', '/metrics').split('\n')) {
      if (!line.startsWith('apiserver_request_total{')) continue;
      const label = (name: string): string => new RegExp(`${name}="([^"]*)"`).exec(line)?.[1] ?? '';
      const [verb, resource] = [label('verb'), label('resource')];
      if (!['POST', 'PUT', 'PATCH', 'DELETE'].includes(verb) || resource === 'leases') continue;
      const kind = `${verb} ${resource}`;
      counts.set(kind, (counts.get(kind) ?? 0) + Number(line.slice(line.lastIndexOf(' '))));
    }
    return counts;
  }

  /** Deletes all of Podwire's objects and annotations, except the Nodes themselves. */
  async clear(): Promise<void> {
    const api = this.connect();
    const signal = AbortSignal.timeout(60_000);
    const collections = [
      ...['ippools', 'ipamblocks', 'blockaffinities', 'ipamhandles', 'ipreservations', 'clusterinformations'],
      GROUP.endsWith('v1') ? 'ipamconfigs' : 'ipamconfigurations',
    ].map((plural) => `/apis/${GROUP}/${plural}`);
    const pools = await api.send({ method: 'GET', path: collections[0]!, signal });
    for (const name of namesIn(pools.body)) {
      const body = { metadata: { finalizers: null } };
      const contentType = 'application/merge-patch+json';
      await api.send({ method: 'PATCH', path: `${collections[0]!}/${name}`, body, contentType, signal });
    }
    const own = ['/apis/podwire.dev/v1alpha1/nodesessions', '/api/v1/namespaces/podwire/configmaps'];
    for (const path of [...collections, ...own]) await api.send({ method: 'DELETE', path, signal });
    const nodes = await api.send({ method: 'GET', path: '/api/v1/nodes', signal });
    for (const name of namesIn(nodes.body)) {
      const body = { metadata: { annotations: null } };
      const contentType = 'application/merge-patch+json';
      await api.send({ method: 'PATCH', path: `/api/v1/nodes/${name}`, body, contentType, signal });
    }
    api.close();
  }

  async stop(): Promise<void> {
    await this.kill();
    await this.etcd.dispose();
    execFileSync('umount', ['--lazy', '/run']);
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** Calico's definitions from a folder, if the caller names one; otherwise the definitions of the chart podwire-crds. */
  async #define(): Promise<void> {
    const folder = process.env.API_SERVER_DEFINITIONS ?? '';
    // The chart has no definitions of Calico's kinds for a cluster that serves them.
    const served = folder === '' ? [] : ['--api-versions=crd.projectcalico.org/v1'];
    const rendered = this.render('podwire-crds', ...served);
    this.apply(GROUP.endsWith('v1') ? asVersion1(rendered) : rendered);
    for (const name of folder === '' ? [] : readdirSync(folder).filter((each) => each.endsWith('.yaml')))
      this.apply(readFileSync(join(folder, name), 'utf8'));
    // For some seconds, the API server answers 429 to requests of a new kind.
    await this.#until(() => this.kubectl('get', '--raw', `/apis/${GROUP}/ippools`) !== '');
  }

  #run(program: string, args: readonly string[], input = ''): string {
    const server = ['--server', `https://127.0.0.1:${PORT}`, '--token', TOKEN];
    const flags = program === 'kubectl' ? [...server, '--certificate-authority', this.#tls.ca] : [];
    const env = { PATH: process.env.PATH ?? '', HOME: this.directory };
    const options = { input, env, encoding: 'utf8', maxBuffer: 64 * 1024 * 1024, stdio: 'pipe' } as const;
    return execFileSync(program, [...flags, ...args], options);
  }

  async #until(isTrue: () => boolean): Promise<void> {
    const deadlineMs = Date.now() + START_TIMEOUT_MS;
    for (;;) {
      try {
        if (isTrue()) return;
      } catch (error) {
        const log = readFileSync(join(this.directory, 'log'), 'utf8').slice(-4000);
        if (Date.now() > deadlineMs) throw new Error(`the API server did not start: ${log}`, { cause: error });
      }
      await sleep(300);
    }
  }
}

/** The same definitions in Calico's older group, with its names and types. */
function asVersion1(definitions: string): string {
  return definitions
    .replaceAll(/(?<![\w.])projectcalico\.org$/gm, 'crd.projectcalico.org')
    .replaceAll(/^( {2}name: \w+)\.projectcalico\.org$/gm, '$1.crd.projectcalico.org')
    .replaceAll('name: v3', 'name: v1')
    .replaceAll('IPAMConfiguration', 'IPAMConfig')
    .replaceAll('ipamconfiguration', 'ipamconfig')
    .replace(/(plural: blockaffinities[^]*?deleted: \{ type: )boolean, default: false/, '$1string');
}

/** Names of the objects in a list. */
function namesIn(list: Json | undefined): string[] {
  const items = isObject(list) && isArray(list.items) ? list.items : [];
  return items.flatMap((item) => {
    const name = isObject(item) && isObject(item.metadata) ? item.metadata.name : undefined;
    return typeof name === 'string' ? [name] : [];
  });
}
