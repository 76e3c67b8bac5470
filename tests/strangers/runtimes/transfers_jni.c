/* The native method of Transfers.java. */
#include "transfers.h"
#include <jni.h>

JNIEXPORT jint JNICALL Java_Transfers_right(JNIEnv *env, jclass class, jstring device, jint count)
{
	const char *name = (*env)->GetStringUTFChars(env, device, NULL);
	jint right = right_transfers(name, count);

	(void)class;
	(*env)->ReleaseStringUTFChars(env, device, name);
	return right;
}
