import type { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';

/** `default/web-0`; empty where there is no pod. */
export function podText(endpoint: Endpoint | undefined): string {
  const pod = endpoint?.pod;
  return pod ? `${pod.namespace}/${pod.name}` : '';
}
