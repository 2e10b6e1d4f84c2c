// An etcd of Podwire's own, so that its outage is not one of the API server: with client certificates, and users that may
// use the keys of their role only.
import { spawn } from 'node:child_process';
import { mkdirSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { makeAuthority, makeCertificate } from './certificates.mjs';
import { CONTROL_PLANE } from './network.mjs';
import { must, outage, until } from './wait.mjs';

const PORT = 2479;
export const PODWIRE_ETCD_ADDRESS = `https://${CONTROL_PLANE}:${PORT}`;

/** Where etcd listens, behind the proxy that can slow it. */
const LISTEN = { host: '127.0.0.1', port: 2481 };
const DELAY_PROXY = join(dirname(fileURLToPath(import.meta.url)), 'delay-proxy.mjs');

/** Keys that services/ipam needs: Calico's records, and Podwire's history and release marks. */
const PREFIXES = ['/calico/', '/podwire/calico/'];

export class PodwireEtcd {
  #folder;
  #path;
  #process;
  #proxy;
  #files;

  constructor({ folder, path }) {
    this.#folder = join(folder, 'podwire-etcd');
    this.#path = path;
    mkdirSync(join(this.#folder, 'logs'), { recursive: true });
  }

  async start() {
    const authority = makeAuthority(this.#folder, 'etcd-authority');
    const make = (name, names) => makeCertificate(this.#folder, { authority, name, names });
    const server = make('server', [`IP:${CONTROL_PLANE}`, 'IP:127.0.0.1']);
    this.#files = { authority, server, root: make('root'), podwire: make('podwire') };
    this.#run();
    const proxy = [DELAY_PROXY, CONTROL_PLANE, PORT, LISTEN.host, LISTEN.port].map(String);
    this.#proxy = spawn(process.execPath, proxy, { stdio: ['pipe', 'ignore', 'inherit'] });
    await this.#answers();
    const commands = [
      ['user', 'add', 'root', '--no-password'],
      ['user', 'grant-role', 'root', 'root'],
      ['role', 'add', 'podwire'],
      ...PREFIXES.map((prefix) => ['role', 'grant-permission', 'podwire', '--prefix=true', 'readwrite', prefix]),
      ['user', 'add', 'podwire', '--no-password'],
      ['user', 'grant-role', 'podwire', 'podwire'],
      ['auth', 'enable'],
    ];
    for (const command of commands) this.ctl(command);
  }

  #run() {
    const log = openSync(join(this.#folder, 'logs', 'etcd.log'), 'a');
    const { authority, server } = this.#files;
    const args = [
      `--data-dir=${join(this.#folder, 'data')}`,
      `--listen-client-urls=https://${LISTEN.host}:${LISTEN.port}`,
      `--advertise-client-urls=${PODWIRE_ETCD_ADDRESS}`,
      '--listen-peer-urls=http://127.0.0.1:2480',
      '--initial-advertise-peer-urls=http://127.0.0.1:2480',
      '--initial-cluster=default=http://127.0.0.1:2480',
      `--cert-file=${server.cert}`,
      `--key-file=${server.key}`,
      `--trusted-ca-file=${authority.cert}`,
      '--client-cert-auth',
    ];
    const env = { PATH: `${this.#path}:/usr/bin:/bin` };
    this.#process = spawn('etcd', args, { env, stdio: ['ignore', log, log], cwd: '/' });
  }

  #answers() {
    return until('Podwire’s etcd', () => Boolean(this.ctl(['endpoint', 'health'])), 30);
  }

  /** Runs etcdctl as the user root. @returns its output */
  ctl(args) {
    const { authority, root } = this.#files;
    const files = [`--cacert=${authority.cert}`, `--cert=${root.cert}`, `--key=${root.key}`];
    const env = { PATH: `${this.#path}:/usr/bin:/bin` };
    return must('etcdctl', [`--endpoints=${PODWIRE_ETCD_ADDRESS}`, ...files, ...args], { env, cwd: this.#folder });
  }

  /** Delays each request and each answer by half of this. */
  slowDown(delayMs) {
    this.#proxy.stdin.write(`${delayMs / 2}\n`);
  }

  /** Loses the endpoint of a pod, whose addresses were allocated years ago from now on. */
  loseEndpoint(namespace, name) {
    const lines = (prefix) => this.ctl(['get', '--prefix', prefix]).split('\n');
    const endpoints = '/calico/resources/v3/projectcalico.org/workloadendpoints/';
    const key = lines(`${endpoints}${namespace}/`).find((line) => line.startsWith(endpoints) && line.includes(name));
    this.ctl(['del', key]);
    const blocks = lines('/calico/ipam/v2/assignment/');
    for (const [index, line] of blocks.entries()) {
      if (!line.startsWith('/calico/') || !blocks[index + 1].includes(`"${name}"`)) continue;
      this.ctl(['put', line, aged(blocks[index + 1], name)]);
    }
  }

  /** The client's files for a Secret of the chart. */
  clientFiles() {
    const { authority, podwire } = this.#files;
    return { 'ca.crt': authority.cert, 'tls.crt': podwire.cert, 'tls.key': podwire.key };
  }

  /** Kills etcd, and starts it again after the time with the same data. `during` runs meanwhile. */
  async outage(durationMs, during) {
    await outage(this.#process, durationMs, { during, restart: () => this.#run() });
    await this.#answers();
  }
}

/** A block, with an old time of the allocations of a pod. */
function aged(text, pod) {
  const block = JSON.parse(text);
  for (const { secondary } of block.attributes) {
    if (secondary?.pod === pod) secondary.timestamp = '2020-01-01 00:00:00 +0000 UTC';
  }
  return JSON.stringify(block);
}
