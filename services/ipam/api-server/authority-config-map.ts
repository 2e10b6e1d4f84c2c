import { Failure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

import type { KubernetesApi } from './api.js';

/** Name of the ConfigMap with the certificates of podwire-ipam's authority. The pods of nodes mount it. */
const AUTHORITY_CONFIG_MAP = 'podwire-authority';

const KEY = 'ca.crt';

/** A ConfigMap (core/v1), as far as it is read. */
const configMapSchema = z.object({
  metadata: z.object({ resourceVersion: z.string() }),
  data: z.record(z.string(), z.string()).default({}),
});

/** Certificates that the nodes trust. */
export interface PublishedAuthorities {
  /** Certificates in PEM; empty before the first podwire-ipam has published its own. */
  readonly certificates: string;
  /** Opaque version of the object, for {@link AuthorityConfigMap.replace}. */
  readonly version: string;
}

/** The ConfigMap that the manifests make empty, so that podwire-ipam needs no permission to create one. */
export class AuthorityConfigMap {
  readonly #api: KubernetesApi;

  constructor(api: KubernetesApi) {
    this.#api = api;
  }

  /** Subject of messages: `ConfigMap podwire-system/podwire-authority`. */
  get subject(): string {
    return `ConfigMap ${this.#api.namespace}/${AUTHORITY_CONFIG_MAP}`;
  }

  /** @throws Failure UNREACHABLE, retryable, also while the ConfigMap is missing; ACCESS_DENIED, DEADLINE_EXCEEDED, CANCELLED */
  async read(signal: AbortSignal): Promise<PublishedAuthorities> {
    const { status, body } = await this.#api.send({ method: 'GET', path: this.#path, signal });
    if (status === 404) throw this.#missing();
    const parsed = configMapSchema.safeParse(body);
    if (!parsed.success)
      throw new Failure('UNREACHABLE', `${this.subject}: the API server answered with another object`);
    const { metadata, data } = parsed.data;
    return { certificates: data[KEY] ?? '', version: metadata.resourceVersion };
  }

  /**
   * Replaces the read version.
   * @returns false when the object was changed since then
   * @throws Failure as {@link AuthorityConfigMap.read}
   */
  async replace({ certificates, version }: PublishedAuthorities, signal: AbortSignal): Promise<boolean> {
    const { status } = await this.#api.send({
      method: 'PATCH',
      path: this.#path,
      contentType: 'application/merge-patch+json',
      body: { metadata: { resourceVersion: version }, data: { [KEY]: certificates } },
      signal,
    });
    if (status === 404) throw this.#missing();
    return status !== 409;
  }

  get #path(): string {
    return `/api/v1/namespaces/${this.#api.namespace}/configmaps/${AUTHORITY_CONFIG_MAP}`;
  }

  #missing(): Failure {
    return new Failure('UNREACHABLE', `${this.subject}: is missing; create it, empty, as deploy/kubernetes does`);
  }
}
