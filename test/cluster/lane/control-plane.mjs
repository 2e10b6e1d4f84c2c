// etcd, API server, controller manager and scheduler: in the namespaces of the lane itself, at the bridge's address.
import { Buffer } from 'node:buffer';
import { spawn } from 'node:child_process';
import { mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { Api } from './api.mjs';
import { CONTROL_PLANE, NODES, SERVICES } from './network.mjs';
import { must, until } from './wait.mjs';

export const ETCD_ADDRESS = `http://${CONTROL_PLANE}:2379`;
const SERVER = `https://${CONTROL_PLANE}:6443`;
const ADMIN_TOKEN = 'admin';

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

  constructor({ folder, path }) {
    this.#folder = join(folder, 'control-plane');
    this.#path = path;
    mkdirSync(join(this.#folder, 'logs'), { recursive: true });
    this.logs = join(this.#folder, 'logs');
    this.kubeconfig = join(this.#folder, 'kubeconfig');
  }

  #spawn(command, args) {
    const log = openSync(join(this.logs, `${command}.log`), 'a');
    const env = { PATH: `${this.#path}:/usr/sbin:/usr/bin:/sbin:/bin`, HOME: '/root' };
    spawn(command, args, { env, stdio: ['ignore', log, log], cwd: '/' });
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

  #startApiServer(families) {
    this.#spawn('kube-apiserver', [
      `--etcd-servers=${ETCD_ADDRESS}`,
      `--advertise-address=${families.name === 'ipv6' ? 'fd00:18::1' : CONTROL_PLANE}`,
      '--bind-address=::',
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

  /** @returns the connection of an administrator */
  async start(families) {
    must('openssl', ['genrsa', '-out', join(this.#folder, 'accounts.key'), '2048']);
    const nodes = NODES.map(({ name }) => `${name},system:node:${name},${name},"system:nodes"`);
    writeFileSync(join(this.#folder, 'tokens'), [`${ADMIN_TOKEN},admin,1,"system:masters"`, ...nodes, ''].join('\n'));
    this.#startEtcd();
    this.#startApiServer(families);
    const ca = await until('the API server’s certificate', () => readFileSync(join(this.#folder, 'apiserver.crt')), 30);
    this.ca = ca;
    writeFileSync(this.kubeconfig, kubeconfig(ca, ADMIN_TOKEN));
    const api = new Api({ host: CONTROL_PLANE, port: 6443, ca, token: ADMIN_TOKEN });
    await until('the API server', async () => (await api.send('GET', '/readyz')).status === 200, 60);
    this.#spawn('kube-controller-manager', [
      `--kubeconfig=${this.kubeconfig}`,
      `--service-account-private-key-file=${join(this.#folder, 'accounts.key')}`,
      `--root-ca-file=${join(this.#folder, 'apiserver.crt')}`,
      `--cert-dir=${join(this.#folder, 'controller-manager')}`,
      '--node-monitor-grace-period=16s',
      '--leader-elect=false',
    ]);
    this.#spawn('kube-scheduler', [`--kubeconfig=${this.kubeconfig}`, '--leader-elect=false']);
    return api;
  }

  kubectl(args, input) {
    const env = { PATH: `${this.#path}:/usr/bin:/bin`, HOME: this.#folder, KUBECONFIG: this.kubeconfig };
    return must('kubectl', args, { env, input, maxBuffer: 64 * 1024 * 1024 });
  }
}
