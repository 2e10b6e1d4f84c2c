// etcd, API server, controller manager and scheduler: in the namespaces of the lane itself, at the bridge's address.
import { Buffer } from 'node:buffer';
import { execFile, spawn } from 'node:child_process';
import { cpSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { Api } from './api.mjs';
import { makeAuthority, makeCertificate } from './certificates.mjs';
import { ROOT } from './guide.mjs';
import { CONTROL_PLANE, CONTROL_PLANE_IPV6, NODES, SERVICE_OF_API, SERVICES } from './network.mjs';
import { must, outage, until } from './wait.mjs';

const execute = promisify(execFile);

const ETCD_ADDRESS = `http://${CONTROL_PLANE}:2379`;
const SERVER = `https://${CONTROL_PLANE}:6443`;
const ADMIN_TOKEN = 'admin';
const MANIFESTS = 'deploy/kubernetes';

export function kubeconfig(ca, token) {
  const cluster = { server: SERVER, 'certificate-authority-data': Buffer.from(ca).toString('base64') };
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'cluster', cluster }],
    users: [{ name: 'user', user: { token } }],
    contexts: [{ name: 'context', context: { cluster: 'cluster', user: 'user' } }],
    'current-context': 'context',
  });
}

export class ControlPlane {
  #folder;
  #path;
  #settings;
  #apiServer;
  #answers;

  constructor({ folder, path }) {
    this.#folder = join(folder, 'control-plane');
    this.#path = path;
    mkdirSync(join(this.#folder, 'logs'), { recursive: true });
    // The administrator edits some of the manifests.
    cpSync(join(ROOT, MANIFESTS), join(this.#folder, MANIFESTS), { recursive: true, dereference: true });
    this.logs = join(this.#folder, 'logs');
    this.kubeconfig = join(this.#folder, 'kubeconfig');
  }

  #spawn(command, args) {
    const log = openSync(join(this.logs, `${command}.log`), 'a');
    const env = { PATH: `${this.#path}:/usr/sbin:/usr/bin:/sbin:/bin`, HOME: '/root' };
    return spawn(command, args, { env, stdio: ['ignore', log, log], cwd: '/' });
  }

  #startEtcd() {
    this.#spawn('etcd', [
      `--data-dir=${join(this.#folder, 'etcd')}`,
      `--listen-client-urls=${ETCD_ADDRESS}`,
      `--advertise-client-urls=${ETCD_ADDRESS}`,
      '--listen-peer-urls=http://127.0.0.1:2380',
      '--unsafe-no-fsync',
    ]);
  }

  #startApiServer() {
    const { families, certificate } = this.#settings;
    this.#apiServer = this.#spawn('kube-apiserver', [
      `--etcd-servers=${ETCD_ADDRESS}`,
      `--advertise-address=${families.name === 'ipv6' ? CONTROL_PLANE_IPV6 : CONTROL_PLANE}`,
      '--bind-address=::',
      `--tls-cert-file=${certificate.cert}`,
      `--tls-private-key-file=${certificate.key}`,
      `--cert-dir=${this.#folder}`,
      `--token-auth-file=${join(this.#folder, 'tokens')}`,
      '--authorization-mode=Node,RBAC',
      '--enable-admission-plugins=NodeRestriction',
      '--service-account-issuer=https://cluster.test',
      `--service-account-key-file=${join(this.#folder, 'accounts.key')}`,
      `--service-account-signing-key-file=${join(this.#folder, 'accounts.key')}`,
      `--service-cluster-ip-range=${families.pick(SERVICES).join(',')}`,
      '--allow-privileged=true',
      '--kubelet-preferred-address-types=InternalIP',
    ]);
  }

  /** Nodes, and pods by the cluster IP of the Service `kubernetes`, connect to the API server by these. */
  #makeCertificate() {
    const authority = makeAuthority(this.#folder, 'kubernetes');
    const addresses = [CONTROL_PLANE, CONTROL_PLANE_IPV6, ...Object.values(SERVICE_OF_API)];
    const names = addresses.map((address) => `IP:${address}`);
    return { authority, certificate: makeCertificate(this.#folder, { authority, name: 'kube-apiserver', names }) };
  }

  /** @returns the connection of an administrator */
  async start(families) {
    must('openssl', ['genrsa', '-out', join(this.#folder, 'accounts.key'), '2048']);
    const nodes = NODES.map(({ name }) => `${name},system:node:${name},${name},"system:nodes"`);
    writeFileSync(join(this.#folder, 'tokens'), [`${ADMIN_TOKEN},admin,1,"system:masters"`, ...nodes, ''].join('\n'));
    const { authority, certificate } = this.#makeCertificate();
    this.#startEtcd();
    this.#settings = { families, certificate };
    this.#startApiServer();
    const ca = readFileSync(authority.cert);
    this.ca = ca;
    writeFileSync(this.kubeconfig, kubeconfig(ca, ADMIN_TOKEN));
    const api = new Api({ host: CONTROL_PLANE, port: 6443, ca, token: ADMIN_TOKEN });
    this.#answers = () => until('the API server', async () => (await api.send('GET', '/readyz')).status === 200, 60);
    await this.#answers();
    this.#spawn('kube-controller-manager', [
      `--kubeconfig=${this.kubeconfig}`,
      `--service-account-private-key-file=${join(this.#folder, 'accounts.key')}`,
      `--root-ca-file=${authority.cert}`,
      `--cert-dir=${join(this.#folder, 'controller-manager')}`,
      '--node-monitor-grace-period=16s',
      '--leader-elect=false',
    ]);
    this.#spawn('kube-scheduler', [`--kubeconfig=${this.kubeconfig}`, '--leader-elect=false']);
    return api;
  }

  /** Kills the API server, and starts it again after the time. `during` runs meanwhile. */
  async outage(durationMs, during) {
    await outage(this.#apiServer, durationMs, { during, restart: () => this.#startApiServer() });
    await this.#answers();
  }

  /**
   * Runs a command line of an administrator, such as of kubectl and helm, in a folder that has a copy of the manifests.
   * @returns its output
   * @throws Error when it fails, or takes longer than five minutes
   */
  async shell(line) {
    try {
      const { stdout } = await execute('sh', ['-c', line], { ...this.#options(), timeout: 300_000 });
      return stdout;
    } catch (error) {
      const reason = error.killed ? 'no end in 5 minutes' : error.stderr || error.message;
      throw new Error(`${line}: ${reason}`, { cause: error });
    }
  }

  /** Replaces a text of a manifest, as the guide demands of the administrator. */
  editManifest(name, from, to) {
    const file = join(this.#folder, MANIFESTS, name);
    writeFileSync(file, readFileSync(file, 'utf8').replaceAll(from, to));
  }

  kubectl(args, input) {
    return must('kubectl', args, { ...this.#options(), input });
  }

  /** Variables of a shell with kubectl and helm. */
  get commandPrefix() {
    return Object.entries(this.#options().env)
      .map(([name, value]) => `${name}=${value}`)
      .join(' ');
  }

  #options() {
    const env = { PATH: `${this.#path}:/usr/bin:/bin`, HOME: this.#folder, KUBECONFIG: this.kubeconfig };
    return { env, cwd: this.#folder, maxBuffer: 64 * 1024 * 1024 };
  }
}
