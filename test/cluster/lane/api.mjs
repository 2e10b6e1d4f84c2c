// Requests to the API server, without the start of a kubectl for each.
import { Buffer } from 'node:buffer';
import { Agent, request } from 'node:https';

import { until } from './wait.mjs';

const PATHS = {
  Namespace: '/api/v1/namespaces',
  Pod: '/api/v1/namespaces/NAMESPACE/pods',
  Service: '/api/v1/namespaces/NAMESPACE/services',
  ServiceAccount: '/api/v1/namespaces/NAMESPACE/serviceaccounts',
  Deployment: '/apis/apps/v1/namespaces/NAMESPACE/deployments',
  ConfigMap: '/api/v1/namespaces/NAMESPACE/configmaps',
  DaemonSet: '/apis/apps/v1/namespaces/NAMESPACE/daemonsets',
  StatefulSet: '/apis/apps/v1/namespaces/NAMESPACE/statefulsets',
  NetworkPolicy: '/apis/networking.k8s.io/v1/namespaces/NAMESPACE/networkpolicies',
  Node: '/api/v1/nodes',
};

export class Api {
  #options;

  constructor({ host, port, ca, token }) {
    this.#options = { host, port, agent: new Agent({ ca, keepAlive: true }), token };
  }

  /** @returns status and body, as an object where it is JSON */
  send(method, path, body, contentType = 'application/json') {
    const { host, port, agent, token } = this.#options;
    const text = body === undefined ? '' : JSON.stringify(body);
    const headers = {
      authorization: `Bearer ${token}`,
      'content-type': contentType,
      // Node.js frames the body of a DELETE only so; without, the API server took it for the next request.
      'content-length': Buffer.byteLength(text),
    };
    return new Promise((resolve, reject) => {
      const call = request({ host, port, agent, method, path, headers, timeout: 10_000 }, (response) => {
        const chunks = [];
        response.on('data', (chunk) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          const answer = Buffer.concat(chunks).toString();
          const isJson = String(response.headers['content-type']).includes('json');
          resolve({ status: response.statusCode, body: isJson ? JSON.parse(answer) : answer });
        });
      });
      call.on('timeout', () => call.destroy(new Error(`${method} ${path}: no answer in 10 s`)));
      call.on('error', reject);
      call.end(text);
    });
  }

  async #expect(method, path, ...rest) {
    const { status, body } = await this.send(method, path, ...rest);
    if (status >= 300) throw new Error(`${method} ${path}: ${status} ${body.message ?? body}`);
    return body;
  }

  get(kind, namespace, name) {
    return this.#expect('GET', pathOf(kind, namespace, name));
  }

  async list(kind, namespace, labels = '') {
    const { items } = await this.#expect(
      'GET',
      `${pathOf(kind, namespace)}?labelSelector=${encodeURIComponent(labels)}`,
    );
    return items;
  }

  apply(object) {
    const { kind, metadata } = object;
    const path = `${pathOf(kind, metadata.namespace, metadata.name)}?fieldManager=cluster-test&force=true`;
    return this.#expect('PATCH', path, object, 'application/apply-patch+yaml');
  }

  patch(kind, namespace, name, change) {
    return this.#expect('PATCH', pathOf(kind, namespace, name), change, 'application/strategic-merge-patch+json');
  }

  /** An object that is gone already is fine. `graceSeconds` 0 is a forced deletion. */
  async remove(kind, namespace, name, graceSeconds) {
    const options = graceSeconds === undefined ? {} : { gracePeriodSeconds: graceSeconds };
    const { status, body } = await this.send('DELETE', pathOf(kind, namespace, name), options);
    if (status >= 300 && status !== 404) throw new Error(`deletion of ${kind} ${name}: ${status} ${body.message}`);
  }

  async removed(kind, namespace, name, timeoutSeconds) {
    const path = pathOf(kind, namespace, name);
    await until(`${kind} ${name} to go`, async () => (await this.send('GET', path)).status === 404, timeoutSeconds);
  }
}

function pathOf(kind, namespace, name) {
  const path = PATHS[kind].replace('NAMESPACE', namespace);
  return name === undefined ? path : `${path}/${name}`;
}
