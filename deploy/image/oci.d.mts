interface Archive {
  readonly file: string;
  readonly work: string;
  readonly name: string;
  readonly epochSeconds: number;
}
interface Image {
  readonly arch: string;
  readonly layers: readonly string[];
}
interface Packing {
  readonly file: string;
  readonly folder: string;
  readonly epochSeconds: number;
  readonly entries?: readonly string[];
}

export function packFolder(packing: Packing): string;
export function writeArchive(archive: Archive & { readonly images: readonly Image[]; readonly config: unknown }): {
  readonly digest: string;
};
